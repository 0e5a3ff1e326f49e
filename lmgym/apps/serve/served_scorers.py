"""The scorers of a server: loaded, named in each answer, with their calibration; several paths are an ensemble."""

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from lmgym.errors import InputError, shown
from lmgym.models.fingerprint import fingerprint
from lmgym.scoring.combinations import combine, is_combination
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.ensembles import Ensemble, read_ensemble
from lmgym.scoring.named_scorers import FUNCTION, RUBRIC, Precision, load_scorer
from lmgym.scoring.protocol import NoVerdict, Scorer, read_scores
from lmgym.scoring.scorers import HFScorer, read_settings
from lmgym.text import Conversation, Reply

LOGITS = ("logit", "difference")
OF_COMPARISONS = ("Bradley-Terry", "Plackett-Luce")
"""losses under which sigmoid(score a - score b) is the probability that people prefer a"""


@dataclass(frozen=True)
class Sample:
    """A reply to score in its conversation, or a text as the scorer reads it."""

    conversation: Conversation
    reply: Reply
    text: str | None = None
    """rendered already; the conversation and the reply are empty then"""
    sent: Reply | None = None
    """the reply with the blanks around it, which scorers read that are not trained; None where they are not known"""
    group: str = ""
    """of the replies that a judge compares with each other"""


@dataclass(frozen=True)
class Reference:
    """Scores of the held-out replies that a scorer was saved with."""

    mean: float
    std: float
    quantiles: tuple[float, ...]
    """evenly spaced from the lowest to the highest score; empty where only the moments are saved"""

    def quantile(self, score: float) -> float:
        """Share of reference replies below a score."""
        return float(np.interp(score, self.quantiles, np.linspace(0, 1, len(self.quantiles))))


@dataclass(frozen=True)
class Member:
    """A scorer with what its folder says of it."""

    scorer: Scorer
    reference: Reference | None
    reduce: str
    compares: bool
    """its scores are those of a Bradley-Terry model"""
    fingerprint: str
    revision: str | None
    """commit of a hub id"""
    temperature: float = 1.0
    """that people prefer a has the probability sigmoid((score a - score b) / temperature)"""


@dataclass(frozen=True)
class Opinion:
    """A scorer's verdict on a reply: a value for each member."""

    scores: tuple[float, ...]
    """of the members of an ensemble, or the one score"""
    z: float | None = None
    quantile: float | None = None
    tokens: int | None = None
    dropped_turns: int = 0
    shortened: int = 0
    combined: float | None = None
    """the members' scores by the ensemble's rule; None: their mean"""

    @property
    def score(self) -> float:
        """The members' scores combined."""
        return sum(self.scores) / len(self.scores) if self.combined is None else self.combined

    @property
    def spread(self) -> float | None:
        """Standard deviation over the members of an ensemble (of the population); None for a single scorer."""
        return float(np.std(self.scores)) if len(self.scores) > 1 else None

    @property
    def is_truncated(self) -> bool:
        """True if anything of the text was left out."""
        return bool(self.dropped_turns or self.shortened)

    def fields(self) -> dict[str, Any]:
        """As JSON, without what is not known."""
        known: dict[str, Any] = {"score": self.score, "z": self.z, "quantile": self.quantile, "spread": self.spread}
        if len(self.scores) > 1:
            known["members"] = list(self.scores)
        if self.tokens is not None:
            known |= {"tokens": self.tokens, "truncated": self.is_truncated}
            known |= {"dropped_turns": self.dropped_turns, "shortened": self.shortened} if self.is_truncated else {}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class ServedScorer:
    """A scorer, or an ensemble whose score is the mean of its members."""

    name: str
    path: str
    members: tuple[Member, ...]

    @classmethod
    def load(cls, name: str, path: str, precision: Precision = "auto") -> "ServedScorer":
        """The scorer at `PATH`, or the ensemble of `PATH+PATH`. Raises InputError for one that does not load."""
        paths = [path] if os.path.exists(path) else [part.strip() for part in path.split("+")]
        if not all(paths):
            raise InputError(f"{shown(path)}: an ensemble is PATH+PATH; needed: a folder or hub id on each side of +")
        return cls(name, path, tuple(_member(one, precision) for one in paths))

    @property
    def compares_replies(self) -> bool:
        """True of a judge that scores whole groups of replies."""
        return any(isinstance(member.scorer, ComparingJudge) for member in self.members)

    @property
    def info(self) -> dict[str, Any]:
        """The identity of the weights, for each answer."""
        prints = [member.fingerprint for member in self.members]
        revisions = [member.revision for member in self.members if member.revision]
        whole = prints[0] if len(prints) == 1 else hashlib.sha256("".join(prints).encode()).hexdigest()
        info: dict[str, Any] = {"fingerprint": whole[:16], "reduce": self.members[0].reduce}
        return info | ({"revision": ",".join(revisions)} if revisions else {})

    def judge(self, samples: Sequence[Sample]) -> list[Opinion]:
        """An opinion a sample. Raises InputError for what a scorer cannot read, ValueError for a score of NaN."""
        columns = [_judge(member, samples, self.name) for member in self.members]
        return [_combine(row) for row in zip(*columns, strict=True)]

    def probability(self, first: Opinion, second: Opinion) -> float | None:
        """That people prefer the first reply; None unless every member was trained on comparisons."""
        if not all(member.compares for member in self.members):
            return None
        alone = len(self.members) == 1
        ours, others = ((one.score,) if alone else one.scores for one in (first, second))
        chances = [float(expit((a - b) / m.temperature)) for m, a, b in zip(self.members, ours, others, strict=True)]
        return sum(chances) / len(chances)

    def activated(self, opinion: Opinion) -> float:
        """The score as vLLM's activation gives it: a logit through the sigmoid; a probability stays."""
        scores = (opinion.score,) if len(self.members) == 1 else opinion.scores
        values = [
            float(expit(score)) if member.reduce in LOGITS or is_combination(member.reduce) else score
            for member, score in zip(self.members, scores, strict=True)
        ]
        return sum(values) / len(values)


def _member(path: str, precision: Precision) -> Member:
    scorer = load_scorer(path, precision)
    source = path if os.path.exists(path) else path.partition("#")[0]
    if isinstance(scorer, Ensemble):
        members, usual = read_ensemble(source)
        prints = "".join(fingerprint(member, role="scorer") for member in members)
        settings = [read_settings(member) for member in members]
        compares = all(_compares(saved.get("reduce", "logit"), saved) for saved in settings)
        temperatures = [_temperature(saved) for saved in settings] if scorer.combine == usual == "mean" else [1.0]
        mean = sum(temperatures) / len(temperatures)
        return Member(scorer, None, scorer.combine, compares, hashlib.sha256(prints.encode()).hexdigest(), None, mean)
    if not isinstance(scorer, HFScorer):
        return Member(scorer, None, "", False, _digest_of_file(path), None)
    saved = read_settings(source)
    revision = getattr(scorer.model.model.config, "_commit_hash", None)
    mark, compares = fingerprint(source, role="scorer"), _compares(scorer.reduce, saved)
    if is_combination(scorer.reduce) and scorer.reduce != saved.get("reduce"):
        saved = {}  # its moments and temperature are of another combination of the heads, on another scale
    return Member(scorer, _reference(saved), scorer.reduce, compares, mark, revision, _temperature(saved))


def _digest_of_file(path: str) -> str:
    """Of a path, with the content of the function's or the rubric's file that it names."""
    match = FUNCTION.fullmatch(path) or RUBRIC.fullmatch(path)
    content = Path(match[1]).read_bytes() if match and os.path.isfile(match[1]) else b""
    return hashlib.sha256(path.encode() + b"\0" + content).hexdigest()


def _compares(reduce: str, saved: dict[str, Any]) -> bool:
    """True if scores are those of a Bradley-Terry model, which most models from elsewhere are."""
    is_logit = reduce in LOGITS or is_combination(reduce)
    return is_logit and str(saved.get("loss", OF_COMPARISONS[0])).startswith(OF_COMPARISONS)


def _temperature(saved: dict[str, Any]) -> float:
    """1 where the scorer's folder has none that can be used."""
    found = saved.get("temperature")
    return float(found) if isinstance(found, int | float) and math.isfinite(found) and found > 0 else 1.0


def _reference(saved: dict[str, Any]) -> Reference | None:
    try:
        mean, std = (float(number) for number in saved["moments"])
        quantiles = tuple(float(number) for number in saved.get("quantiles", ()))
    except (KeyError, TypeError, ValueError):
        return None
    is_usable = std > 0 and all(map(math.isfinite, (mean, std, *quantiles)))
    return Reference(mean, std, quantiles) if is_usable else None


def _judge(member: Member, samples: Sequence[Sample], name: str) -> list[Opinion]:
    """Opinions of one member, as `lmgym score` scores the samples in one file."""
    found: dict[int, Opinion] = {}
    scorer = member.scorer
    for raw in (False, True):
        places = [i for i, sample in enumerate(samples) if (sample.text is not None) == raw]
        some: list[Any] = [samples[i] for i in places]
        if not some:
            continue
        if not isinstance(scorer, HFScorer):
            if raw:
                raise InputError(f"scorer {name} reads conversations, no rendered text; needed: template=reparse")
            conversations, replies = [s.conversation for s in some], [s.reply for s in some]
            if isinstance(scorer, ComparingJudge):
                found |= zip(places, _compared(scorer, some), strict=True)
                continue
            if isinstance(scorer, Ensemble):
                members = scorer.score_members(conversations, replies)
                scores = read_scores(combine(members, scorer.combine), len(some))
                for i, score, column in zip(places, scores, members.T.tolist(), strict=True):
                    found[i] = Opinion(tuple(column), combined=score)
                continue
            sent = [s.reply if s.sent is None else s.sent for s in some]
            scores = read_scores(scorer.score(conversations, sent), len(some))
            found |= {i: Opinion((score,)) for i, score in zip(places, scores, strict=True)}
            continue
        if raw:
            judged = scorer.judge_texts([s.text for s in some])
        else:
            judged = scorer.judge([s.conversation for s in some], [s.reply for s in some])
        scores = read_scores(judged.scores, len(some))
        columns = judged.members.T.tolist() if len(judged.members) else [[score] for score in scores]
        for i, score, column, tokens, turns, cut in zip(
            places, scores, columns, judged.tokens, judged.dropped_turns, judged.shortened, strict=True
        ):
            found[i] = Opinion(tuple(column), *_calibrated(member.reference, score), tokens, turns, cut, score)
    return [found[i] for i in range(len(samples))]


def _compared(judge: ComparingJudge, samples: Sequence[Sample]) -> list[Opinion]:
    """The strength of each reply in its group. Raises NoVerdict if one has none."""
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.group, []).append(place)
    replies = [[s.reply if s.sent is None else s.sent for s in (samples[i] for i in own)] for own in groups.values()]
    found = [0.0] * len(samples)
    strengths = judge.score_groups([samples[own[0]].conversation for own in groups.values()], replies)
    for own, scores in zip(groups.values(), strengths, strict=True):
        for place, score in zip(own, scores, strict=True):
            found[place] = score
    if missing := sum(map(math.isnan, found)):
        raise NoVerdict(f"the judge gave no verdict on {missing:,} of {len(found):,} replies")
    return [Opinion((score,)) for score in found]


def _calibrated(reference: Reference | None, score: float) -> tuple[float | None, float | None]:
    """(z-score, quantile), each None where the scorer's folder does not tell."""
    if reference is None:
        return None, None
    return (score - reference.mean) / reference.std, reference.quantile(score) if reference.quantiles else None


def _combine(opinions: Sequence[Opinion]) -> Opinion:
    """The opinions of an ensemble's members as one: means, and the most that any of them left out."""
    if len(opinions) == 1:
        return opinions[0]
    tokens = [one.tokens for one in opinions if one.tokens is not None]
    return Opinion(
        tuple(one.score for one in opinions),
        _mean([one.z for one in opinions]),
        _mean([one.quantile for one in opinions]),
        max(tokens) if tokens else None,
        max(one.dropped_turns for one in opinions),
        max(one.shortened for one in opinions),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None
