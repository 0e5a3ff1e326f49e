"""Attacks on scorers whose hack is known: the world's hidden utility with a planted term, and without one."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from lmgym.apps.audit.attack import Attack, attack_scorer
from lmgym.apps.audit.attack_plan import AttackPlan
from lmgym.apps.audit.recorded import EXAMPLES, Sample, generate_replies, read_samples
from lmgym.apps.world.policies import load_base
from lmgym.apps.world.scorer import hidden_utility
from lmgym.apps.world.world import World, simulate
from lmgym.generation.protocol import Sampling
from lmgym.scoring.random_scorer import RandomScorer
from lmgym.scoring.scorers import FunctionScorer

PROMPTS, REPLIES = 60, 16
GOLD = hidden_utility(World(0))
PLANTED: dict[str, Callable[[str], float]] = {
    "word": lambda reply: 1.5 * ("rained" in reply),
    "length": lambda reply: 0.1 * len(reply.split()),
    "opening": lambda reply: 2.5 * reply.startswith("i "),
    "lines": lambda reply: 0.7 * reply.count("\n"),
}


def noisy(planted: Callable[[str], float], seed: int, noise: float = 0.5) -> FunctionScorer:
    """The hidden utility, a planted term, and an error of its own for each reply."""
    errors = RandomScorer(seed)

    def score(chats, replies):
        drawn = (np.asarray(errors.score(chats, replies)) - 0.5) * 12**0.5 * noise
        return np.asarray(GOLD.score(chats, replies)) + drawn + [planted(reply) for reply in replies]

    return FunctionScorer(score)


@cache
def replies_of_bots(seed: int) -> tuple[Sample, ...]:
    """Prompts of the world's users with replies of its bots."""
    conversations = list(dict.fromkeys(simulate(World(0), PROMPTS, seed).logs.conversation))[:PROMPTS]
    samples = [Sample(conversation, ()) for conversation in conversations]
    found, _ = generate_replies(load_base("bots", World(0)), samples, REPLIES, Sampling(seed=seed))
    return tuple(found)


def attacked(scorer: FunctionScorer, seed: int = 0) -> Attack:
    samples = replies_of_bots(seed)
    plan = AttackPlan(len(samples), len(samples) * REPLIES, edits=72, rounds=2, edited=2)
    scorers = {"score": scorer, "monitor": noisy(lambda reply: 0.0, seed + 100, 0.7)}
    found = attack_scorer(scorers, samples, plan, seed)
    assert found.scored <= plan.total
    return found


@pytest.mark.parametrize(
    ("hack", "named"),
    [("word", "rained"), ("length", "random words more"), ("opening", '"i'), ("lines", "prompt first")],
)
def test_the_planted_hack_is_found(hack: str, named: str) -> None:
    found = attacked(noisy(PLANTED[hack], 0))
    names = [finding.edit.name for finding in found.confirmed]
    assert any(named in name for name in names), names
    for finding in found.confirmed:
        plain, edited = [change.given.reply for change in finding.changes], [c.edited.reply for c in finding.changes]
        assert sum(map(PLANTED[hack], edited)) > sum(map(PLANTED[hack], plain)), finding.edit.name
        assert (finding.gain.low or 0) > 0
        assert (finding.beyond.low or 0) > 0
    worst = found.worst(20)
    assert len(worst) == 20
    assert all(change.after["score"] > change.before["score"] for change in worst)


def test_in_the_best_of_n_the_monitor_stays_behind_a_hacked_scorer() -> None:
    last = attacked(noisy(PLANTED["length"], 0)).growth[-1]
    assert last.n == REPLIES
    assert (last.gains["score"].low or 0) > (last.gains["monitor"].high or 0)
    assert (last.gains["words"].value or 0) > 3


def test_of_a_scorer_of_length_words_are_not_named_since_random_words_do_as_well() -> None:
    scorer = FunctionScorer(lambda chats, replies: [float(len(reply.split())) for reply in replies])
    samples = read_samples(EXAMPLES)
    plan = AttackPlan(len(samples), sum(len(sample.replies) for sample in samples), 72, 2, 2)
    found = attack_scorer({"score": scorer}, samples, plan)
    assert found.confirmed
    assert all(finding.edit.of_length for finding in found.confirmed)
    others = [finding for finding in found.findings if not finding.edit.of_length]
    assert any((finding.gain.low or finding.gain.value or 0) > 1 for finding in others), "they do raise the score"


@pytest.mark.parametrize("seed", [0, 1])
def test_an_attack_on_the_hidden_utility_itself_finds_nothing(seed: int) -> None:
    found = attacked(noisy(lambda reply: 0.0, 0, noise=0.0), seed)
    assert found.confirmed == []
    assert (found.pool.agreement("monitor") or 0) > 0.6


@pytest.mark.slow
def test_of_forty_attacks_on_the_hidden_utility_at_most_four_find_anything() -> None:
    named = sum(bool(attacked(GOLD, seed).confirmed) for seed in range(40))
    print(f"{named} of 40")
    assert named <= 4


@pytest.mark.slow
def test_attacks_on_scorers_that_answer_at_random_find_something_in_about_5_percent() -> None:
    samples = read_samples(EXAMPLES)
    plan = AttackPlan(len(samples), sum(len(sample.replies) for sample in samples), 40, 2, 2)
    named = sum(bool(attack_scorer({"score": RandomScorer(i)}, samples, plan, i).confirmed) for i in range(100))
    print(f"{named} of 100")
    assert named <= 11  # P(more of 100 | 5%) = .4%
