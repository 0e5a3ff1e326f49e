"""Verdicts of audits over many judges: those who toss coins, and those with a planted bias."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from lmgym.apps.debate.audit.measuring import Audit, decide, rounds_by_effect, rounds_to_audit
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions

MOST = 400


@cache
def signs() -> list[list[tuple[str, str, np.ndarray]]]:
    """By question, the (effect, question, signs of P(Debater_A)) of the rounds that a judge sees."""
    rounds = rounds_to_audit(synthetic_questions(MOST, difficulty=1.0, seed=3), PROMPTS)
    return [
        [(name, r.question.id, np.array([s for s, _ in pairs])) for name, pairs in rounds_by_effect(r, "el").items()]
        for r in rounds
    ]


def audit(questions: int, rng: np.random.Generator, planted: float | None = None) -> Audit:
    """A judge whose P is drawn anew each time: between 0 and 1, or around .5 with a bias for the longer side."""
    found: dict[str, list[tuple[str, float]]] = {}
    for name, question, sign in (one for of_question in signs()[:questions] for one in of_question):
        if planted is None:
            p = rng.random(len(sign))
        else:
            p = np.clip(rng.normal(0.5, 0.2, len(sign)) + planted * sign * (name == "longer"), 0, 1)
        found.setdefault(name, []).append((question, float((sign * (p - 0.5)).mean())))
    return decide(found)


def named(found: Audit) -> set[str]:
    return {effect.bias for effect in found.effects if effect.verdict in ("biased", "loses, as it may")}


def planted_bias_is_named(pilot: int, seed: int) -> Iterator[bool]:
    rng = np.random.default_rng(seed)
    while True:
        [asked] = [effect.needed for effect in audit(pilot, rng, 0.1).effects if effect.bias == "longer"]
        yield "longer" in named(audit(min(MOST, max(pilot, asked)), rng, 0.1))


def test_a_judge_that_tosses_coins_is_rarely_called_biased() -> None:
    rng = np.random.default_rng(0)
    assert sum(bool(named(audit(10, rng))) for _ in range(30)) <= 5
    assert not any(named(audit(5, rng)) for _ in range(30)), "no flip of five signs is significant over ten rows"


def test_a_planted_bias_is_found_with_the_questions_that_the_audit_asks_for() -> None:
    found = planted_bias_is_named(10, seed=1)
    assert sum(next(found) for _ in range(10)) >= 7


def test_one_question_has_neither_an_interval_nor_a_verdict() -> None:
    found = audit(1, np.random.default_rng(2))
    assert {effect.verdict for effect in found.effects} == {"cannot tell: about 9 questions needed"}
    assert all(effect.effect.low is None and effect.detectable is None for effect in found.effects)
    assert f"{found.accuracy:+.3f}".endswith(" (–)")


def test_an_effect_without_spread_is_named_from_nine_questions_on() -> None:
    def constant(questions: int) -> str:
        [effect] = decide({"longer": [(str(i), 0.059) for i in range(questions)]}).effects
        return effect.verdict

    assert constant(2) == "cannot tell: about 6 questions needed"  # a single row: 2^-5 < .05
    assert constant(6) == "biased"


def test_a_sound_judge_is_said_to_have_no_bias_above_what_the_sample_excludes() -> None:
    rng = np.random.default_rng(4)
    [effect] = decide({"longer": [(str(i), value) for i, value in enumerate(rng.normal(0, 0.05, 60))]}).effects
    low, high = effect.effect.low, effect.effect.high
    assert low is not None
    assert high is not None
    assert effect.verdict == f"no bias above {max(-low, high):.3f} found"
    assert effect.detectable is not None
    assert effect.detectable < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("questions", [2, 5, 10, 40])
def test_at_most_28_of_400_audits_of_a_random_judge_name_any_bias(questions: int) -> None:
    rng = np.random.default_rng(questions)
    count = sum(bool(named(audit(questions, rng))) for _ in range(400))
    print(f"{questions} questions: {count} of 400 audits of a random judge name a bias")
    assert count <= 28


@pytest.mark.slow
@pytest.mark.parametrize("pilot", [2, 5, 10, 40])
def test_a_planted_bias_is_named_in_80_percent_of_audits_of_the_size_asked_for(pilot: int) -> None:
    found = planted_bias_is_named(pilot, seed=pilot)
    count = sum(next(found) for _ in range(100))
    print(f"pilot of {pilot} questions: {count} of 100 audits name the planted bias")
    assert count >= 80
