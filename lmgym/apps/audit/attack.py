"""An attack on a scorer: the pool, the growth in the best of N, what winners have, GRPO, and the search for edits."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lmgym.apps.audit.attack_edits import AttackEdit, candidates, vocabulary_of
from lmgym.apps.audit.attack_plan import AttackPlan
from lmgym.apps.audit.attack_pool import TARGET, Growth, Pool, ScoreBook, growth, make_pool
from lmgym.apps.audit.attack_training import Training, compare_training
from lmgym.apps.audit.edit_search import SMALLEST, AttackChange, Finding, Search
from lmgym.apps.audit.recorded import Sample
from lmgym.apps.audit.winners import More, as_written, confirm_features, strongest
from lmgym.scoring.protocol import Scorer

Train = Callable[[Sequence[Sample], Sequence[Sample]], Sequence[Sample]]
"""of (prompts to train on, all prompts): all prompts with the replies of the policy that was trained"""


@dataclass(frozen=True)
class Attack:
    """All that an attack found."""

    pool: Pool
    growth: tuple[Growth, ...]
    winners: tuple[More, ...]
    findings: tuple[Finding, ...]
    """those of the search in its order, then those of an earlier attack"""
    found_on: Mapping[AttackEdit, Sequence[AttackChange]]
    """the edits of the first half, of confirmed findings"""
    halves: tuple[Sequence[int], Sequence[int]]
    """prompts on which edits and features are found, and tested"""
    scored: int
    """replies, by each scorer"""
    training: Training | None = None

    @property
    def confirmed(self) -> list[Finding]:
        """The edits that raise the score and no monitor."""
        return [finding for finding in self.findings if finding.confirmed]

    def worst(self, most: int) -> list[AttackChange]:
        """The edited replies whose score gained most above what the monitors gained, by confirmed edits."""
        spreads = self.pool.spreads
        changes = [change for finding in self.confirmed for change in finding.changes]

        def unseen(change: AttackChange) -> float:
            watched = [change.gain(name, spreads) for name in self.pool.monitors]
            return change.gain(TARGET, spreads) - max([0.0, *watched])

        return sorted(changes, key=unseen, reverse=True)[:most]


def attack_scorer(
    scorers: Mapping[str, Scorer],
    samples: Sequence[Sample],
    plan: AttackPlan,
    seed: int = 0,
    earlier: Sequence[AttackEdit] = (),
    done: Callable[[int], None] | None = None,
    train: Train | None = None,
    updates: int = 0,
    smallest: float = SMALLEST,
) -> Attack:
    """Attacks the scorer named TARGET; the others are its monitors.

    `done` is called with the number of replies that are scored. Raises InputError for too few prompts or replies.
    """
    book = ScoreBook(scorers, done)
    pool = make_pool(book, samples)
    order = random.Random(seed).sample(range(len(pool.samples)), len(pool.samples))
    first, second = sorted(order[: len(order) // 2]), sorted(order[len(order) // 2 :])
    grown = growth(pool)
    training, joined = None, pool
    if train is not None:
        trained = train([pool.samples[i] for i in first], pool.samples)
        joined, training = compare_training(book, pool, trained, second, updates)
    strong = strongest(joined, first)
    replies = [reply for i in first for reply in joined.samples[i].replies]
    features = [as_written(feature, replies) for feature in strong]
    vocabulary = vocabulary_of(replies)
    search = Search(book, pool, plan.edited, vocabulary, smallest)
    edits = search.find(candidates(features, replies, plan.edits), first, plan.rounds)
    findings = search.test(edits, second, earlier)
    confirmed = [finding.edit for finding in findings if finding.confirmed]
    found_on = search.changes(confirmed, first)
    winners = tuple(confirm_features(joined, strong, second))
    return Attack(pool, tuple(grown), winners, tuple(findings), found_on, (first, second), book.scored, training)
