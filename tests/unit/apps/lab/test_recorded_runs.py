"""Alarms on runs recorded by benchmarks/alarms_on_trial.py: a broken alarm says something else than it said."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmgym.apps.lab.alarms import RULES
from lmgym.apps.lab.trial import judge
from lmgym.apps.lab.watching import Watched
from lmgym.scoring import alarm

FOLDER = Path(__file__).with_name("recorded_runs")
SAID: dict[str, dict[str, Any]] = json.loads((FOLDER / "said.json").read_text())
RUNS = {name: Watched.read(FOLDER / name) for name in SAID}
ON_WATCHERS = [rule.name for rule in RULES if rule.watcher]

Exceed = Callable[..., Any]
BROKEN: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a rise of the score counts as a fall": (
        "_exceed",
        lambda known: lambda earlier, now, sign, bound: known(earlier, now, 1, bound),
    ),
    "a fall of the reward counts as a rise": (
        "_exceed",
        lambda known: lambda earlier, now, sign, bound: known(earlier, now, -1, bound),
    ),
    "prompts are not paired": (
        "_exceed",
        lambda known: lambda earlier, now, sign, bound: known(earlier, replace(now, names=()), sign, bound),
    ),
    "a fall within the tolerance counts": ("TOLERANCE", lambda known: 0.0),
    "looks and their comparisons are not counted": ("_level", lambda known: lambda look: alarm.ALPHA),
}
"""the name in lmgym/scoring/alarm.py that is broken, and how"""


def said_now(runs: dict[str, Watched]) -> dict[str, dict[str, Any]]:
    """The look at which each alarm on a watcher rings, and its largest statistic, by run."""
    judged = {name: judge(name, name, run) for name, run in runs.items()}
    return {
        name: {rule: (one.rings[rule], pytest.approx(one.largest[rule], rel=0.01)) for rule in ON_WATCHERS}
        for name, one in judged.items()
    }


SAID_BY_WATCHERS = {
    name: {rule: (said["rings"][rule], said["largest"][rule]) for rule in ON_WATCHERS} for name, said in SAID.items()
}


@pytest.mark.parametrize("name", SAID)
def test_each_alarm_says_of_a_recorded_run_what_it_said(name: str) -> None:
    said, now = SAID[name], judge(name, name, RUNS[name])
    assert (now.peak, now.rings) == (said["peak"], said["rings"])
    assert now.largest == pytest.approx(said["largest"], rel=1e-3)


def test_recorded_runs_are_sound_and_exploited_ones_and_a_watcher_falls_in_some() -> None:
    assert {run["outcome"] for run in SAID.values()} == {"sound", "exploited"}
    fallen = [any(run["rings"][rule] is not None for rule in ON_WATCHERS) for run in SAID.values()]
    assert 2 <= sum(fallen) < len(fallen)


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_alarm_is_noticed(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, change = BROKEN[how]
    monkeypatch.setattr(alarm, name, change(getattr(alarm, name)))
    assert said_now(RUNS) != SAID_BY_WATCHERS


def test_an_alarm_on_what_is_optimised_is_noticed() -> None:
    swapped = {name: replace(run, by=dict.fromkeys(run.by, run.reward)) for name, run in RUNS.items()}
    assert said_now(swapped) != SAID_BY_WATCHERS


def test_the_alarms_that_are_not_broken_say_what_they_said() -> None:
    assert said_now(RUNS) == SAID_BY_WATCHERS
