"""The page of the runs that a reward server watches, in the form of a run's report."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmgym.apps.serve.runs import FEWEST_GROUPS, FEWEST_REPLIES
from lmgym.report.charts import Points, lines
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table, duration, figure
from lmgym.statistics import from_moments

MOST_SHOWN = 16


def runs_page(runs: Sequence[Mapping[str, Any]]) -> str:
    """HTML of what `/runs` answers."""
    alarms = sum(bool(run["warnings"]) for run in runs)
    words = f"{alarms} of {len(runs)} with an alarm" if alarms else f"{len(runs)} without an alarm"
    lead = [f"{run['run']}: {warning}" for run in runs for warning in run["warnings"]]
    if not runs:
        lead = ["No run has asked for rewards yet, or none has named itself: see docs/serve.md."]
    return render(
        title="Runs that ask for rewards",
        badge={"kind": "bad" if alarms else "good", "words": words},
        lead=lead,
        cards=[_card(run) for run in runs[:MOST_SHOWN]],
        sections=[Section(f"run_{i}", _title(run), _panels(run, i)) for i, run in enumerate(runs[:MOST_SHOWN])],
        live=True,
    )


def _title(run: Mapping[str, Any]) -> str:
    return f"{run['run']}, trained on {run['reward']}"


def _card(run: Mapping[str, Any]) -> Card:
    state = "too few replies" if not run["readings"] else "no alarm" if run["monitors"] else "no monitor"
    state = "ALARM" if run["warnings"] else state
    note = f"replies: {run['replies']:,}; last asked {duration(run['seconds_since_request'])} ago"
    return Card(_title(run), state, note=note)


def _panels(run: Mapping[str, Any], number: int) -> list[Panel]:
    readings = run["readings"]
    if not readings:
        needed = f"the first figures come with {FEWEST_REPLIES} replies to {FEWEST_GROUPS} prompts"
        about = f"{run['replies']:,} up to now; {needed}."
        return [Panel(f"few_{number}", "Not enough replies yet", about)]
    gains = {name: _gains(name, readings) for name in (run["reward"], *run["monitors"])}
    about = (
        "The reward and the monitors, which the run is not trained on, each less its first value, in standard "
        "deviations then, with intervals of 95%. Where a monitor falls while the reward rises, the run exploits it."
    )
    terms = dict.fromkeys(run["monitors"], "A score that the run is not trained on.")
    terms[run["reward"]] = "The reward that the run is trained on."
    chart = lines(gains, "step", "gain", gains, sorted(set(run["alarms"].values())))
    panels = [Panel(f"gains_{number}", "Reward and monitors", about, chart, terms=terms)]
    for figure_name, title in (("characters", "Length in characters"), ("duplicates", "Share of duplicates")):
        points = [(r["last_step"], r["means"][f"reply/{figure_name}"]) for r in readings]
        panels.append(Panel(f"{figure_name}_{number}", title, chart=lines({title: points}, "step", points=[title])))
    names = sorted(readings[-1]["means"])
    rows = [[name, figure(readings[0]["means"].get(name)), figure(readings[-1]["means"].get(name))] for name in names]
    table = Table(["figure", _steps(readings[0]), _steps(readings[-1])], rows, frozenset({1, 2}))
    about = "Means over groups; z: distance from the scorer's reference replies; outside: share beyond all of them."
    return [*panels, Panel(f"figures_{number}", "All figures", about, table=table)]


def _gains(name: str, readings: Sequence[Mapping[str, Any]]) -> Points:
    first = readings[0]["means"][name]
    std = readings[0]["errors"][name] * readings[0]["groups"] ** 0.5 or 1.0
    found = []
    for reading in readings:
        groups = reading["groups"]
        gain = from_moments(reading["means"][name] - first, reading["errors"][name] * (groups - 1) ** 0.5, groups)
        ends = (gain.value, gain.low, gain.high)
        found.append((reading["last_step"], *(end / std for end in ends if end is not None)))
    return found


def _steps(reading: Mapping[str, Any]) -> str:
    return f"steps {reading['first_step']:,} to {reading['last_step']:,}"
