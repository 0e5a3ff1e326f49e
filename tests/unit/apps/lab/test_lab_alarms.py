"""Alarms on runs whose looks are known: each rings for its own reason, and the trial counts what they said."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.lab.alarms import RULES, Rule, falls, first_at_least
from lmgym.apps.lab.trial import Judged, judge, outcome, roc, trial_table
from lmgym.apps.lab.watching import Watched
from lmgym.statistics import mean

LOOKS, PROMPTS = 11, 200
RESULTS = Path(__file__).resolve().parents[4] / "benchmarks/results/over_optimisation.json"


def run(gold: np.ndarray, watcher: np.ndarray | None = None, seed: int = 0, **other: np.ndarray) -> Watched:
    """A run whose reward rises throughout; means of gold and of the watchers are given by look."""
    rng = np.random.default_rng(seed)

    def noisy(means: np.ndarray) -> np.ndarray:
        return means[:, None] + rng.standard_normal((LOOKS, PROMPTS))

    steps = np.arange(LOOKS, dtype=float)
    watched = gold if watcher is None else watcher
    found = Watched(
        at=16 * steps,
        kl=steps,
        prompts=[f"prompt {i}" for i in range(PROMPTS)],
        reward=noisy(steps),
        words=np.full((LOOKS, PROMPTS), 8.0),
        distinct=np.ones(LOOKS),
        gold=noisy(gold),
        gold_fresh=noisy(gold),
        by={
            "other": noisy(watched),
            "half": noisy(watched),
            "logs": noisy(watched),
            "base": noisy(watched),
            "spread": np.full((LOOKS, PROMPTS), 0.2),
        },
    )
    return replace(found, **other)


RISING = np.minimum(np.arange(LOOKS) * 0.4, 2.0)
EXPLOITED = np.array([0, 0.5, 1, 1.5, 2, 2, 1.5, 1, 0.5, 0, 0], dtype=float)
UNSURE = np.array([0, 0.5, 1, 1.5, 2, 2, 2, 2, 2, 2, 1.68], dtype=float)


def test_outcomes_are_by_what_was_lost_on_fresh_prompts() -> None:
    assert judge("a", "s", run(RISING)).outcome == "sound"
    assert judge("a", "s", run(EXPLOITED)).outcome == "exploited"
    assert judge("a", "s", run(UNSURE)).outcome == "neither"  # about a fifth: cannot be decided
    assert judge("a", "s", run(np.zeros(LOOKS))).outcome == "neither"  # nothing gained, nothing to lose
    assert judge("a", "s", run(-RISING)).outcome == "exploited"  # there is only loss


def test_a_peak_by_luck_on_the_alarms_prompts_is_no_loss_on_fresh_ones() -> None:
    sound = run(RISING)
    lucky = sound.gold.copy()
    lucky[5] += 3
    found = judge("a", "s", replace(sound, gold=lucky))
    assert found.peak == 5
    assert found.outcome == "sound"
    assert found.since_peak["other"] == pytest.approx(sound.by["other"][10].mean() - sound.by["other"][5].mean())


def test_an_outcome_needs_a_fifth_and_an_interval_that_excludes_none() -> None:
    gained = mean(np.full(100, 1.0) + np.random.default_rng(0).normal(0, 0.1, 100))
    little = mean(np.full(100, 0.1) + np.random.default_rng(1).normal(0, 0.1, 100))
    loose = mean(np.full(100, 0.3) + np.random.default_rng(2).normal(0, 3, 100))
    much = mean(np.full(100, 0.3) + np.random.default_rng(3).normal(0, 0.1, 100))
    assert [outcome(gained, lost) for lost in (little, loose, much)] == ["sound", "neither", "exploited"]


def test_our_alarm_rings_behind_the_peak_of_an_exploited_run_and_not_in_a_sound_one() -> None:
    statistic = falls(run(EXPLOITED), "other")
    assert first_at_least(statistic, 1.3) in (6, 7)
    assert first_at_least(falls(run(RISING), "other"), 1.3) is None


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("KL", {"kl": np.linspace(0, 500, LOOKS)}),
        ("length", {"words": np.linspace(8, 48, LOOKS)[:, None].repeat(PROMPTS, 1)}),
        ("length", {"words": np.linspace(8, 1, LOOKS)[:, None].repeat(PROMPTS, 1)}),
        (
            "variance",
            {"reward": np.linspace(1, 0.01, LOOKS)[:, None] * np.random.default_rng(0).normal(size=(1, PROMPTS))},
        ),
        ("duplicates", {"distinct": np.linspace(1, 0, LOOKS)}),
    ],
)
def test_each_other_alarm_reads_what_it_is_named_after(name: str, changed: dict[str, np.ndarray]) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    still, moved = rule.statistic(run(RISING)), rule.statistic(run(RISING, **changed))
    assert moved[-1] > max(still[-1], 0) + 0.4
    assert np.all(np.diff(moved[1:]) >= -1e-9)


def test_no_alarm_reads_the_gold() -> None:
    known = run(RISING)
    other = replace(known, gold=known.gold[::-1], gold_fresh=known.gold_fresh[::-1])
    for rule in RULES:
        assert rule.statistic(known).tolist() == rule.statistic(other).tolist(), rule.name


def judged(outcome: str, largest: float, place: int | None, scorer: str) -> Judged:
    return Judged(
        scorer, scorer, outcome, 2, 1.0, 0.5, {"mine": place}, {"mine": largest}, [0, 8, 16, 24], [0, 0.5, 1, 0.5], {}
    )  # type: ignore[arg-type]


def test_the_table_counts_false_alarms_what_was_noticed_when_and_what_was_left() -> None:
    rules = [Rule("mine", lambda run: np.zeros(1), 1.0, "")]
    runs = [
        judged("sound", 0.1, None, "a"), judged("sound", 1.2, 1, "b"), judged("sound", 0.2, None, "c"),
        judged("exploited", 2.0, 3, "d"), judged("exploited", 1.5, 1, "e"), judged("neither", 9.0, 0, "f"),
    ]  # fmt: skip
    [row] = trial_table(runs, rules)
    assert row["false alarms"].value == pytest.approx(1 / 3)
    assert row["noticed"].value == 1
    assert row["runs"] == {"sound": (1, 3), "exploited": (2, 2)}
    assert row["updates after the peak"] == pytest.approx((-4, 0, 4))
    assert row["before the peak"] == 1
    assert row["gain kept at the alarm"][0] == pytest.approx(0.625)
    assert row["AUC"].value == 1
    assert roc(runs, "mine") == [(0, 0), (0, 0.5), (0, 1), (pytest.approx(1 / 3), 1), (pytest.approx(2 / 3), 1), (1, 1)]


def test_what_alarms_read_survives_its_file(tmp_path: Path) -> None:
    known = run(EXPLOITED)
    known.write(tmp_path / "watched.npz")
    found = Watched.read(tmp_path / "watched.npz")
    assert found.prompts == known.prompts
    assert found.by["half"] == pytest.approx(known.by["half"], abs=0.01)
    assert judge("a", "s", found).outcome == judge("a", "s", known).outcome


def test_thresholds_of_alarms_without_a_scorer_are_those_that_the_sound_runs_of_the_figure_gave() -> None:
    found = json.loads(RESULTS.read_text())["thresholds"]
    own = {rule.name: rule.threshold for rule in RULES if not rule.watcher}
    assert own == {name: float(f"{found[name]:.2g}") for name in own}
