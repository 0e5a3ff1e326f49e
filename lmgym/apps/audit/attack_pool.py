"""A policy's replies with their scores, and how score and monitors grow in the best of N of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.apps.audit.edits import Exchange
from lmgym.apps.audit.measuring import score_all, within_spread
from lmgym.apps.audit.recorded import Sample
from lmgym.errors import InputError
from lmgym.scoring.best_of_n_estimates import best_of_n_kl, best_of_n_values
from lmgym.scoring.protocol import Scorer
from lmgym.statistics import Estimate, mean

TARGET = "score"
LENGTH = "words"
TOGETHER = 256  # replies in one call of a scorer
FEWEST = 6  # prompts of a point of the curve

Scores = Mapping[str, float]
"""of a reply, by scorer: TARGET, and the monitors by their names"""


class ScoreBook:
    """The scores of replies by all scorers, each reply scored once."""

    def __init__(self, scorers: Mapping[str, Scorer], done: Callable[[int], None] | None = None) -> None:
        self.scorers, self.done = scorers, done
        self.known: dict[Exchange, dict[str, float]] = {}
        """without the replies that a scorer refuses"""
        self.scored = 0
        """replies that were scored, refused ones too"""

    def score(self, exchanges: Sequence[Exchange]) -> list[Scores | None]:
        """The scores of each; None for a reply that some scorer refuses."""
        wanted = [one for one in dict.fromkeys(exchanges) if one not in self.known]
        for start in range(0, len(wanted), TOGETHER):
            batch = wanted[start : start + TOGETHER]
            found = {name: score_all(scorer, batch) for name, scorer in self.scorers.items()}
            for one in batch:
                if all(one in scores for scores in found.values()):
                    self.known[one] = {name: scores[one] for name, scores in found.items()}
            self.scored += len(batch)
            if self.done:
                self.done(self.scored)
        return [self.known.get(one) for one in exchanges]


@dataclass(frozen=True)
class Pool:
    """Prompts with replies, and the scores[replies] of each prompt by scorer."""

    samples: tuple[Sample, ...]
    scores: Mapping[str, tuple[np.ndarray, ...]]

    @property
    def monitors(self) -> list[str]:
        """Names of the scorers that are watched."""
        return [name for name in self.scores if name != TARGET]

    @property
    def spreads(self) -> dict[str, float]:
        """By scorer, the standard deviation of scores of replies to one prompt; 1 where they do not differ."""
        return {name: within_spread([list(s) for s in scores]) or 1.0 for name, scores in self.scores.items()}

    def agreement(self, monitor: str) -> float | None:
        """Correlation of score and monitor within prompts; None if either is constant."""
        a, b = (np.concatenate([s - s.mean() for s in self.scores[name]]) for name in (TARGET, monitor))
        return float(a @ b / np.sqrt((a @ a) * (b @ b))) if a.any() and b.any() else None


def make_pool(book: ScoreBook, samples: Sequence[Sample]) -> Pool:
    """The pool of these samples, without replies that a scorer refuses, and without prompts that have fewer than two.

    Raises InputError if fewer than two prompts are left, or if the score of replies to a prompt never differs.
    """
    given = [Exchange(sample.conversation, reply) for sample in samples for reply in sample.replies]
    book.score(given)
    kept, scores = list[Sample](), {name: list[np.ndarray]() for name in book.scorers}
    for sample in samples:
        pairs = [(reply, book.known.get(Exchange(sample.conversation, reply))) for reply in sample.replies]
        known = [(reply, found) for reply, found in pairs if found is not None]
        if len(known) < 2:
            continue
        kept.append(replace(sample, replies=tuple(reply for reply, _ in known)))
        for name, of_prompts in scores.items():
            of_prompts.append(np.array([found[name] for _, found in known]))
    if len(kept) < 2:
        raise InputError(
            f"{len(kept)} prompts with two replies or more, of {len(samples):,}; needed: 2, better 60; or --policy "
            "MODEL, whose replies are then used"
        )
    if not any(np.ptp(of_prompt) for of_prompt in scores[TARGET]):
        raise InputError(
            f"the scorer gives all replies to a prompt the same score, over {len(kept):,} prompts: nothing to raise; "
            "needed: a scorer that tells replies apart, or replies that differ more"
        )
    return Pool(tuple(kept), {name: tuple(of_prompts) for name, of_prompts in scores.items()})


@dataclass(frozen=True)
class Growth:
    """The best of N against a single reply."""

    n: int
    kl: float
    """nats, a bound"""
    gains: Mapping[str, Estimate]
    """by scorer, in its spreads, over prompts; LENGTH in words"""


def growth(pool: Pool) -> list[Growth]:
    """Score, monitors and length as they grow with N = 1, 2, 4, ..., each by the unbiased estimate from one pool.

    A point rests on the prompts with N replies or more, at least FEWEST of them or all.
    """
    sizes = [len(sample.replies) for sample in pool.samples]
    enough = min(FEWEST, len(sizes))
    largest = sorted(sizes)[-enough]
    levels = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    spreads = pool.spreads
    watched = {name: [scores / spreads[name] for scores in pool.scores[name]] for name in pool.scores}
    watched[LENGTH] = [np.array([len(r.split()) for r in s.replies], dtype=np.float64) for s in pool.samples]
    return [
        Growth(n, best_of_n_kl(n), {name: mean(_gains(pool, values, n)) for name, values in watched.items()})
        for n in levels
    ]


def _gains(pool: Pool, values: Sequence[np.ndarray], n: int) -> list[float]:
    """Of each prompt with n replies, the value of the best of n less that of a single reply."""
    both = zip(pool.scores[TARGET], values, strict=True)
    return [float(best_of_n_values([score], [value], n)[0] - value.mean()) for score, value in both if len(score) >= n]
