"""Effects of edits on a scorer, in units of the spread of its scores over a policy's own replies to a prompt."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lmgym.apps.audit.biases import DRAWN, Bias, wordings_of
from lmgym.apps.audit.causes import explained
from lmgym.apps.audit.edits import Exchange, Others, Versions
from lmgym.apps.audit.recorded import Sample
from lmgym.apps.audit.steadiness import Steadiness, in_template, kept, share_kept
from lmgym.apps.audit.verdicts import Effect, Observed, decide
from lmgym.errors import InputError
from lmgym.scoring.protocol import Scorer, read_scores
from lmgym.statistics import NOTHING, Estimate, Ratio, mean

SMALLEST = 0.5  # spreads: the effect of interest
TOGETHER = 4  # prompts whose replies are scored in one call


@dataclass(frozen=True)
class Change:
    """An edit of one reply, with the scores of both versions."""

    bias: str
    prompt: str
    """key of the prompt"""
    versions: Versions
    scores: tuple[float, ...]
    """of each version"""
    wording: str = ""

    @property
    def by(self) -> float:
        """The change of the score."""
        return self.scores[1] - self.scores[0]

    def observed(self, spread: float) -> Observed:
        """The change in spreads."""
        beside = (self.scores[1] - self.scores[2]) / spread if len(self.scores) > 2 else None
        return Observed(self.prompt, self.by / spread, self.wording, beside)


@dataclass(frozen=True)
class Audit:
    """The table of a scorer and what it rests on."""

    effects: tuple[Effect, ...]
    """in units of the spread: those that are named, each behind what explains it, and the others; the largest first"""
    changes: tuple[Change, ...]
    spread: float
    """standard deviation of the scores of replies to one prompt, pooled over prompts"""
    prompts: int
    replies: int
    """that the spread rests on"""
    longer: Estimate
    """change of the score, in spreads, with each doubling of the words of a policy's own reply: no edit, so that longer
    replies may simply be better"""
    left_out: Mapping[str, int]
    """by bias, edits that could not be made, or that the scorer could not read"""
    steadiness: Steadiness = field(default_factory=Steadiness)
    own_style: Estimate = NOTHING
    """by how many spreads replies of the scorer's own base score higher: no edit, so that they may simply be better"""

    @property
    def biased(self) -> list[Effect]:
        """The biases that are named."""
        return [effect for effect in self.effects if effect.biased]

    @property
    def needed(self) -> list[int | None]:
        """Prompts with which the smallest effect of interest would be found, by row, of which some cannot be edited.

        None where no number of prompts is enough.
        """
        return [
            None if effect.needed is None else math.ceil(effect.needed * self.prompts / effect.units)
            for effect in self.effects
        ]

    def examples(self, bias: str, most: int) -> list[Change]:
        """The edits that moved the score most in the direction of the effect, each prompt once."""
        [effect] = [one for one in self.effects if one.bias == bias]
        sign = -1 if (effect.effect.value or 0) < 0 else 1
        ordered = sorted((c for c in self.changes if c.bias == bias), key=lambda change: -sign * change.by)
        first = {change.prompt: change for change in reversed(ordered)}
        return sorted(first.values(), key=lambda change: -sign * change.by)[:most]


@dataclass(frozen=True)
class Measured:
    """The figures behind an audit: the prompts with the replies that could be scored, their scores, and the edits'."""

    samples: tuple[Sample, ...]
    own: tuple[tuple[float, ...], ...]
    """scores of the replies of each prompt"""
    changes: tuple[Change, ...]
    left_out: Mapping[str, int]
    """by bias, edits that could not be made, or that the scorer could not read"""
    steadiness: Steadiness = field(default_factory=Steadiness)

    @property
    def spread(self) -> float:
        """Raises InputError for a scorer whose scores of replies to a prompt do not differ."""
        if spread := within_spread(self.own):
            return spread
        raise InputError(
            f"the scorer gives all replies to a prompt the same score, over {len(self.samples):,} prompts, so that "
            "effects have no unit; needed: a scorer that tells replies apart, or replies that differ more"
        )

    def observed(self) -> dict[str, list[Observed]]:
        """The effects by bias, in spreads."""
        spread, found = self.spread, dict[str, list[Observed]]()
        for change in self.changes:
            found.setdefault(change.bias, []).append(change.observed(spread))
        return found


def audit_scorer(
    scorer: Scorer,
    samples: Sequence[Sample],
    biases: Sequence[Bias],
    edited: int = 2,
    smallest: float = SMALLEST,
    done: Callable[[int], None] | None = None,
    seconds: float = math.inf,
    steadiness: bool = False,
    wordings: int = DRAWN,
) -> Audit:
    """The effects of all edits on the first `edited` replies of each prompt, in spreads over all its replies.

    Other arguments and errors are those of `measure`.
    """
    found = measure(scorer, samples, biases, edited, done, seconds, steadiness, wordings)
    effects = decide(found.observed(), [bias.row for bias in biases], smallest)
    edits: dict[str, list[Versions]] = {}
    for change in found.changes:
        edits.setdefault(change.bias, []).append(change.versions)
    return Audit(
        tuple(explained(effects, edits)),
        found.changes,
        found.spread,
        len(found.samples),
        sum(map(len, found.own)),
        length_slope(found.samples, found.own, found.spread),
        found.left_out,
        found.steadiness,
    )


def measure(
    scorer: Scorer,
    samples: Sequence[Sample],
    biases: Sequence[Bias],
    edited: int = 2,
    done: Callable[[int], None] | None = None,
    seconds: float = math.inf,
    steadiness: bool = False,
    wordings: int = DRAWN,
) -> Measured:
    """Scores the replies and the edits of the first `edited` ones of each prompt, which draws so many `wordings`.

    `done` is called with the number of prompts that are finished; no batch of prompts is begun that would probably end
    after so many `seconds`. With `steadiness` all replies are scored twice more, the second time with the prompt in
    another template. Raises InputError for samples without two replies to a prompt.
    """
    samples = [sample for sample in samples if sample.replies]
    if max((len(set(sample.replies)) for sample in samples), default=0) < 2:
        raise InputError(
            f"{len(samples):,} prompts with replies, none with two different ones, so that effects have no unit; "
            "needed: two or more replies to a prompt, or --policy MODEL, whose replies are then used"
        )
    read: list[Sample] = []
    own: list[tuple[float, ...]] = []
    changes: list[Change] = []
    left_out: Counter[str] = Counter()
    again: list[tuple[str, bool]] = []
    in_templates: list[tuple[str, bool]] = []
    draws, others = {bias.name: bias.draws(wordings) for bias in biases}, Others(samples)
    began = time.monotonic()
    for start in range(0, len(samples), TOGETHER):
        if start and (time.monotonic() - began) * (1 + TOGETHER / start) > seconds:
            break
        batch = samples[start : start + TOGETHER]
        made = [one for sample in batch for one in _made(sample, biases, draws, others, edited)]
        given = [one for sample in batch for one in _replies(sample)]
        scores = score_all(scorer, [*given, *_texts(made)])
        for sample in batch:
            known = [reply for reply in sample.replies if Exchange(sample.conversation, reply) in scores]
            read.append(replace(sample, replies=tuple(known)))
            own.append(tuple(scores[Exchange(sample.conversation, reply)] for reply in known))
        for name, key, wording, versions in made:
            found = tuple(scores.get(one, np.nan) for one in versions or () if one is not None)
            if versions and np.isfinite(found).all():
                changes.append(Change(name, key, versions, found, wording))
            else:
                left_out[name] += 1
        if steadiness:
            second, third = _again(scorer, batch, start)
            for sample in batch:
                first = {one: scores[one] for one in _replies(sample) if one in scores}
                again += kept(sample.key, first, second)
                in_templates += kept(sample.key, first, third)
        if done:
            done(start + len(batch))
    steady = Steadiness(share_kept(again), share_kept(in_templates))
    return Measured(tuple(read), tuple(own), tuple(changes), dict(left_out), steady)


def _replies(sample: Sample) -> list[Exchange]:
    return [Exchange(sample.conversation, reply) for reply in sample.replies]


Scores = dict[Exchange, float]


def _again(scorer: Scorer, batch: Sequence[Sample], start: int) -> tuple[Scores, Scores]:
    """The scores of the replies of a batch in the reverse order, and those with the prompts in other templates."""
    given = [one for sample in batch for one in _replies(sample)]
    other = {one: in_template(one, start + i) for i, sample in enumerate(batch) for one in _replies(sample)}
    found = score_all(scorer, list(other.values()))
    return score_all(scorer, given[::-1]), {one: found[text] for one, text in other.items() if text in found}


Made = tuple[str, str, str, Versions | None]
"""(bias, key of the prompt, wording, the edit if it could be made)"""


def _made(
    sample: Sample, biases: Sequence[Bias], draws: Mapping[str, Iterator[tuple[str, ...]]], others: Others, edited: int
) -> list[Made]:
    """The edits of the first replies of a prompt, each bias with the wordings that it draws for it."""
    given = [Exchange(sample.conversation, reply) for reply in sample.replies[:edited]]
    return [
        (bias.name, sample.key, wording, bias.edits[wording](given[place], others))
        for bias in biases
        for place, wording in wordings_of(next(draws[bias.name]), len(given))
    ]


def _texts(made: Sequence[Made]) -> list[Exchange]:
    return [one for *_, versions in made for one in versions or () if one is not None]


def score_all(scorer: Scorer, exchanges: Sequence[Exchange]) -> dict[Exchange, float]:
    """The score of each different exchange; those that the scorer refuses, as a template may, are left out.

    Raises InputError if it refuses all.
    """
    wanted = list(dict.fromkeys(exchanges))
    try:
        return dict(zip(wanted, _score(scorer, wanted), strict=True))
    except InputError as error:  # of some: the others are scored without them
        found: dict[Exchange, float] = {}
        for one in wanted:
            try:
                found[one] = _score(scorer, [one])[0]
            except InputError:
                continue
        if not found:
            raise error
        return found


def _score(scorer: Scorer, exchanges: Sequence[Exchange]) -> list[float]:
    scores = scorer.score([one.conversation for one in exchanges], [one.reply for one in exchanges])
    return read_scores(scores, len(exchanges))


def within_spread(own: Sequence[Sequence[float]]) -> float:
    """The standard deviation of scores[prompts][replies] within prompts, pooled by degrees of freedom."""
    groups = [np.asarray(scores, dtype=np.float64) for scores in own if len(scores) > 1]
    squares = sum(float(np.square(scores - scores.mean()).sum()) for scores in groups)
    return float(np.sqrt(squares / sum(len(scores) - 1 for scores in groups)))


def style_of(scorer: Scorer, samples: Sequence[Sample], others: Sequence[Sample], spread: float) -> Estimate:
    """By how many spreads other replies to the same prompts score higher, over prompts that have both."""
    gains = []
    for sample, other in zip(samples, others, strict=True):
        if sample.replies and other.replies:
            scores = score_all(scorer, [*_replies(sample), *_replies(other)])
            sides = [[scores[one] for one in _replies(side) if one in scores] for side in (other, sample)]
            gains += [(np.mean(sides[0]) - np.mean(sides[1])) / spread] if all(sides) else []
    return mean(gains)


def length_slope(samples: Sequence[Sample], own: Sequence[Sequence[float]], spread: float) -> Estimate:
    """Slope of the score, in spreads, on log2 of the number of words within prompts, with its interval over prompts.

    NOTHING if no two replies to a prompt differ in length.
    """
    products, squares = [], []
    for sample, scores in zip(samples, own, strict=True):
        if not scores:
            continue
        sizes = np.log2([max(1, len(reply.split())) for reply in sample.replies])
        centred = sizes - sizes.mean()
        products.append(float(centred @ (np.asarray(scores) - np.mean(scores)) / spread))
        squares.append(float(centred @ centred))
    if not any(squares):
        return NOTHING
    return Ratio(np.array(products), np.array(squares)).estimate
