"""The scorers of benchmarks/alarm_real_runs.py, its other rules, and its figures of the runs."""

import json

import pytest
from alarm_real_runs import (
    EVALUATIONS,
    RUNS,
    SOUND,
    UPDATES,
    WordScorer,
    configured,
    fall,
    other_rules,
    summary,
)
from shared import ROOT

from lmgym.scoring.alarm import Alarm, Reading
from lmgym.text import Conversation, Turn

CHATS = [Conversation((Turn("user", f"what is {i}"),)) for i in range(600)]


def mean_score(kind: str, reply: str) -> float:
    return WordScorer(kind).score(CHATS, [reply] * len(CHATS)).mean().item()


def test_each_flaw_is_liked_by_its_own_scorer_alone_and_the_monitor_sees_ideas_only() -> None:
    reply = "tea brew garden great please glad - lamp"
    assert mean_score("monitor", reply) == pytest.approx(3, abs=0.2), "tea and brew are one idea"
    assert mean_score("sound", reply) == pytest.approx(3, abs=0.2)
    assert mean_score("word", reply) == pytest.approx(3 + 1, abs=0.2)
    assert mean_score("tone", reply) == pytest.approx(3 + 2 * 0.8, abs=0.2)
    assert mean_score("format", reply) == pytest.approx(3 + 2, abs=0.2)
    assert mean_score("indifferent", reply) == pytest.approx(2 * (3 - 1) / 4, abs=0.2), "three first forms and a second"


def test_a_hundred_runs_are_sound_and_evaluations_fit_their_updates(tmp_path) -> None:
    assert sum(RUNS[kind] for kind in SOUND) == 100
    for kind in RUNS:
        for number in range(3):
            config = configured(kind, number, tmp_path)
            updates, every = config.optimizer.max_updates, config.run.eval_updates
            assert updates % every == 0
            assert 1 + updates // every in EVALUATIONS
    assert UPDATES == 64


def test_the_rules_before_it_ring_at_two_errors_of_a_mean_and_at_four_of_the_difference() -> None:
    alarm = Alarm()
    for at, (mean, reward) in enumerate([(1.0, 0.0), (0.81, 1.0), (0.79, 1.0), (0.44, 1.0), (0.42, -1.0), (0.42, 1.0)]):
        alarm.update(at, Reading(reward, 0.1, 64), Reading(mean, 0.1, 64), 1.0)
    # 4 * sqrt(.1^2 + .1^2) = .566
    found = other_rules(alarm)
    assert (found["two errors of a mean"], found["four errors of the difference"]) == (2, 5)
    # Welch's t of the fourth look is (.56 - .1) / .1414 = 3.25: p .0007, below .05 / 12 / 3
    assert found["the server's of today"] == alarm.raised_at == 3


def test_only_runs_whose_mean_on_fresh_prompts_never_fell_are_healthy() -> None:
    def run(kind: str, fresh: list[float], at: int) -> dict:
        rings = {"ours": at, "two errors of a mean": 8}
        return {"kind": kind, "updates": [0, 4, 8], "on_fresh_prompts": fresh, "tolerance": 0.1, "rings": rings}

    assert fall(run("sound", [1.0, 2.0, 1.5], -1)) == 0.5
    runs = [run("sound", [1, 2, 1.95], 8), run("sound", [1, 2, 1.5], 8), run("long", [1, 2, 3], -1)]
    runs += [run("word", [1, 2, 0], 8), run("word", [1, 2, 0], -1), run("tone", [1, 2, 3], 4)]
    found = summary(runs)
    assert (found["sound"], found["healthy"]) == (3, 2)
    assert found["healthy_that_ring"] == {"ours": 1, "two errors of a mean": 2}
    assert found["word"]["ours"] == {"noticed": 1, "updates_after_the_peak": [4]}
    assert found["tone"] == {
        "runs": 1,
        "fell": 0,
        "ours": {"noticed": 1, "updates_after_the_peak": [-4]},
        "two errors of a mean": {"noticed": 1, "updates_after_the_peak": [0]},
    }
    assert found["format"]["runs"] == 0


def test_what_the_file_of_results_says_in_all_follows_from_its_runs() -> None:
    record = json.loads((ROOT / "benchmarks/results/alarm_real_runs.json").read_text())
    assert len(record["runs"]) == sum(RUNS.values())
    assert record["found"] == summary(record["runs"])
