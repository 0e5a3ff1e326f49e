"""Effects of edits on a scorer, in units of the spread of its scores over a policy's own replies to a prompt."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.apps.audit.biases import Bias
from lmgym.apps.audit.edits import Exchange, Versions
from lmgym.apps.audit.recorded import Sample
from lmgym.apps.audit.verdicts import Effect, decide
from lmgym.errors import InputError
from lmgym.scoring.protocol import Scorer, read_scores
from lmgym.statistics import NOTHING, Estimate, Ratio

SMALLEST = 0.5  # spreads: the effect of interest
TOGETHER = 4  # prompts whose replies are scored in one call


@dataclass(frozen=True)
class Change:
    """An edit of one reply, with the scores of both versions."""

    bias: str
    prompt: str
    """key of the prompt"""
    versions: Versions
    scores: tuple[float, float]

    @property
    def by(self) -> float:
        """The change of the score."""
        return self.scores[1] - self.scores[0]


@dataclass(frozen=True)
class Audit:
    """The table of a scorer, the largest effects first, and what it rests on."""

    effects: tuple[Effect, ...]
    """in units of the spread"""
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

    @property
    def biased(self) -> list[Effect]:
        """The biases that are named."""
        return [effect for effect in self.effects if effect.biased]

    @property
    def needed(self) -> list[int]:
        """Prompts with which the smallest effect of interest would be found, by row, of which some cannot be edited."""
        return [math.ceil(effect.needed * self.prompts / effect.effect.units) for effect in self.effects]

    def examples(self, bias: str, most: int) -> list[Change]:
        """The edits that moved the score most in the direction of the effect, each prompt once."""
        [effect] = [one for one in self.effects if one.bias == bias]
        sign = -1 if (effect.effect.value or 0) < 0 else 1
        ordered = sorted((c for c in self.changes if c.bias == bias), key=lambda change: -sign * change.by)
        first = {change.prompt: change for change in reversed(ordered)}
        return sorted(first.values(), key=lambda change: -sign * change.by)[:most]


def audit_scorer(
    scorer: Scorer,
    samples: Sequence[Sample],
    biases: Sequence[Bias],
    edited: int = 2,
    smallest: float = SMALLEST,
    done: Callable[[int], None] | None = None,
    seconds: float = math.inf,
) -> Audit:
    """The effects of all edits on the first `edited` replies of each prompt, in spreads over all its replies.

    `done` is called with the number of prompts that are finished; no batch of prompts is begun that would probably end
    after so many `seconds`. Raises InputError for samples without two replies to
    a prompt, and for a scorer whose scores of replies to a prompt do not differ.
    """
    samples = [sample for sample in samples if sample.replies]
    if max((len(set(sample.replies)) for sample in samples), default=0) < 2:
        raise InputError(
            f"{len(samples):,} prompts with replies, none with two different ones, so that effects have no unit; "
            "needed: two or more replies to a prompt, or --policy MODEL, whose replies are then used"
        )
    read: list[Sample] = []
    own: list[list[float]] = []
    changes: list[Change] = []
    left_out: Counter[str] = Counter()
    began = time.monotonic()
    for start in range(0, len(samples), TOGETHER):
        if start and (time.monotonic() - began) * (1 + TOGETHER / start) > seconds:
            break
        batch = samples[start : start + TOGETHER]
        made = [
            (bias.name, sample.key, bias.edit(Exchange(sample.conversation, reply)))
            for sample in batch
            for reply in sample.replies[:edited]
            for bias in biases
        ]
        given = [Exchange(sample.conversation, reply) for sample in batch for reply in sample.replies]
        scores = score_all(scorer, [*given, *(one for *_, versions in made if versions for one in versions)])
        for sample in batch:
            known = [reply for reply in sample.replies if Exchange(sample.conversation, reply) in scores]
            read.append(replace(sample, replies=tuple(known)))
            own.append([scores[Exchange(sample.conversation, reply)] for reply in known])
        for name, key, versions in made:
            found = versions and [scores.get(one, np.nan) for one in versions]
            if versions and found and np.isfinite(found).all():
                changes.append(Change(name, key, versions, (found[0], found[1])))
            else:
                left_out[name] += 1
        if done:
            done(start + len(batch))
    return _audit(read, own, changes, biases, smallest, left_out)


def _audit(
    samples: Sequence[Sample],
    own: Sequence[Sequence[float]],
    changes: Sequence[Change],
    biases: Sequence[Bias],
    smallest: float,
    left_out: Mapping[str, int],
) -> Audit:
    spread = within_spread(own)
    if not spread:
        raise InputError(
            f"the scorer gives all replies to a prompt the same score, over {len(samples):,} prompts, so that effects "
            "have no unit; needed: a scorer that tells replies apart, or replies that differ more"
        )
    found: dict[str, list[tuple[str, float]]] = {}
    for change in changes:
        found.setdefault(change.bias, []).append((change.prompt, change.by / spread))
    effects = decide(found, [bias.row for bias in biases], smallest)
    return Audit(
        tuple(sorted(effects, key=lambda effect: -abs(effect.effect.value or 0))),
        tuple(changes),
        spread,
        len(samples),
        sum(map(len, own)),
        length_slope(samples, own, spread),
        dict(left_out),
    )


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
