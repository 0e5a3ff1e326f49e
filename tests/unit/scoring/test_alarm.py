"""The alarm of over-optimisation: what it compares, and how often it rings in runs that are healthy or exploited."""

import json

import numpy as np
import pytest
from scipy import stats

from lmgym.scoring.alarm import ALPHA, TOLERANCE, Alarm, Reading, _level, preview, prompts_needed, smallest_fall

PROMPTS = [f"prompt {i}" for i in range(64)]


def looks(rng: np.random.Generator, means: list[float]) -> list[tuple[Reading, Reading]]:
    """(reward, score) of each look: the reward rises by half a spread each time."""
    own = rng.standard_normal(len(PROMPTS))
    found = []
    for number, mean in enumerate(means):
        scores = mean + 0.7 * own + 0.7 * rng.standard_normal(len(PROMPTS))
        found.append((Reading.of(number / 2 + rng.standard_normal(64), PROMPTS), Reading.of(scores, PROMPTS)))
    return found


def heard(alarm: Alarm, given: list[tuple[Reading, Reading]]) -> list[bool]:
    return [alarm.update(10 * at, reward, score, 1.0) for at, (reward, score) in enumerate(given)]


def test_a_fall_while_the_reward_rises_rings_once_and_says_since_when_by_how_much_and_how_sure() -> None:
    alarm = Alarm()
    assert heard(alarm, looks(np.random.default_rng(0), [0, 1, 1.1, 0.2, 0.1])) == [False, False, False, True, True]
    assert alarm.raised_at == 30
    assert alarm.label() == "ALARM at update 30: eval scorer falls"
    assert alarm.label("round", "monitor") == "ALARM at round 30: monitor falls"
    said = alarm.message()
    assert said.startswith("ALARM at update 40: the evaluation scorer's score fell from 1.")
    assert "by more than the tolerance of 0.100 (p " in said
    assert "64 prompts), while the reward rose from " in said


def test_the_p_value_is_that_of_a_paired_t_test_against_the_tolerance_and_levels_add_up_to_alpha() -> None:
    before, after = np.linspace(1, 2, 64), np.random.default_rng(1).uniform(0, 1.5, 64)  # of a low kurtosis
    rewards = Reading(0.0, 0.1, 64), Reading(1.0, 0.1, 64)
    alarm = Alarm()
    given = [(r, Reading.of(list(values), PROMPTS)) for r, values in zip(rewards, (before, after), strict=True)]
    assert heard(alarm, given) == [False, True]
    expected = stats.ttest_1samp(before - after, TOLERANCE, alternative="greater").pvalue
    assert alarm.fall is not None
    assert alarm.fall.p_value == pytest.approx(expected, rel=1e-9)
    assert alarm.fall.level == ALPHA / 2
    assert sum((k - 1) * _level(k) for k in range(2, 100_000)) == pytest.approx(ALPHA, rel=1e-4)


def test_neither_a_fall_of_both_nor_one_within_the_tolerance_rings() -> None:
    rng = np.random.default_rng(2)
    both = [(score, score) for _, score in looks(rng, [2, 1, 0])]
    within = looks(rng, [TOLERANCE, 0] * 10)
    assert not any(heard(Alarm(), both))
    assert not any(heard(Alarm(), within))


def test_rows_of_one_prompt_are_one_unit_and_failed_ones_are_left_out() -> None:
    found = Reading.of([1.0, 3.0, float("nan"), 6.0], ["a", "a", "b", "c"])
    assert (found.mean, found.units, found.names, found.values) == (4.0, 2, ["a", "c"], [2.0, 6.0])
    assert found.error == pytest.approx(np.std([2, 6], ddof=1) / np.sqrt(2))
    assert Reading.of([], []).units == 0


def test_readings_of_other_prompts_are_compared_by_their_errors() -> None:
    rising = [Reading(mean, 0.05, 400) for mean in (0, 1, 2)]
    falling = [Reading(mean, 0.05, 400) for mean in (1.0, 1.1, 0.6)]
    assert heard(Alarm(), list(zip(rising, falling, strict=True))) == [False, False, True]


def test_a_look_without_values_says_nothing_and_one_prompt_gives_no_verdict() -> None:
    empty = Reading.of([], [])
    given = looks(np.random.default_rng(3), [2, 0])
    assert heard(Alarm(), [(empty, empty), *given, (empty, empty)]) == [False, False, True, False]
    one = [(Reading.of([float(i)], ["a"]), Reading.of([-float(i)], ["a"])) for i in range(9)]
    assert not any(heard(Alarm(), one))


def test_the_state_comes_back_from_json_and_an_older_one_without_looks_is_read() -> None:
    given = looks(np.random.default_rng(4), [0, 1, 0.8, 0.1, 0])
    whole, first, second = Alarm(), Alarm(), Alarm()
    expected = heard(whole, given)
    heard(first, given[:3])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [second.update(10 * at, *given[at], 1.0) for at in (3, 4)] == expected[3:]
    assert second.message() == whole.message()
    old = Alarm()
    old.load_state_dict({"best_score": 0.3, "reward_at_best": 0.1, "raised_at": 8})
    assert (old.raised_at, old.looks) == (8, [])


def test_of_healthy_runs_at_most_alpha_ring_and_of_exploited_ones_nearly_all() -> None:
    rng = np.random.default_rng(5)
    false = sum(any(heard(Alarm(), looks(rng, list(rng.uniform(-0.05, 0.05, 12))))) for _ in range(200))
    assert false <= 18, "the chance of more is 1% where 5% ring"
    noticed = sum(any(heard(Alarm(), looks(rng, [0, 0.5, 1, 0.5, 0]))) for _ in range(50))
    assert noticed >= 45


def test_equal_falls_ring_if_there_are_enough_of_them() -> None:
    for prompts, rings in ((5, False), (6, True)):
        names = PROMPTS[:prompts]
        given = [(Reading(at, 0.1, 99), Reading.of([9.0 - at] * prompts, names)) for at in range(2)]
        assert heard(Alarm(), given) == [False, rings], "2^-5 is above the first level, 2^-6 below"


def test_how_many_prompts_show_which_fall_follows_from_the_looks() -> None:
    assert prompts_needed(5) < prompts_needed(20) < prompts_needed(80) < 100
    assert smallest_fall(prompts_needed(5), 5) == pytest.approx(1 + TOLERANCE, abs=0.03)
    assert smallest_fall(256, 5) < smallest_fall(64, 5) < smallest_fall(16, 5)
    assert "16 prompts show a fall of 1.8 standard deviations in 4 of 5 cases" in preview(16, 5)
    assert "up to the last of 5 evaluations; for 1.1: 38 prompts; of runs" in preview(16, 5)
    assert "for 1.1" not in preview(64, 5)
    assert preview(1, 5).startswith("no alarm: 1 prompt(s)")


def test_the_alpha_that_a_look_needs_is_below_alpha_exactly_where_it_rings() -> None:
    rng = np.random.default_rng(3)
    for means in ([0, 1, 1.1, 0.2, 0.1], [0, 1, 1, 1, 0.6], [0, 1, 2, 3, 4]):
        alarm, rung, needed = Alarm(), [], []
        for at, (reward, score) in enumerate(looks(rng, means)):
            rung.append(alarm.update(at, reward, score, 1.0))
            needed.append(alarm.alpha_needed)
        assert rung == [alpha <= ALPHA for alpha in needed]
        assert needed[0] == float("inf")
