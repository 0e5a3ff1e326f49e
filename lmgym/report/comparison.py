"""Several runs side by side: settings that differ, results, curves, and a paired test on the same held-out rows."""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.report.charts import Points, lines
from lmgym.report.costs import MEMORY, cost_of, seconds_of
from lmgym.report.curves import (
    CAPABILITY,
    CURVES,
    KL,
    over_optimisation_chart,
    over_optimisation_series,
    points_of,
    within,
)
from lmgym.report.facts import CARDS, SAME_BEFORE, few_prompts, kept, outcome, setting_text
from lmgym.report.glossary import definition
from lmgym.report.page import render
from lmgym.report.panels import Panel, Section, Table, duration, figure
from lmgym.report.run_files import Row, RunFiles, is_number
from lmgym.report.samples import compared, shown
from lmgym.statistics import FEW, Estimate, paired_difference

FEWEST_GROUPS = 6  # with fewer, no permutation of signs has a p below .05
SAME_ROWS = (
    "give all runs the same rows to be tested: one --eval_dataset FILE (PPO: --eval_prompts), or the same data with "
    "one --split_seed and --eval_size"
)
NOT_COMPARED = frozenset({"output", "name", "tracking", "resume", "dry_run"})


@dataclass(frozen=True)
class PairedTest:
    """The mean difference from the first run on the same held-out rows, its 95% interval and a two-sided p."""

    what: str
    difference: Estimate
    p: float

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        few = f" of only {self.difference.units} prompts" if self.difference.units < FEW else ""
        return f"{self.difference:+.3f}, {p}, {self.difference.rows:,} rows{few}"


@dataclass(frozen=True)
class Comparison:
    """Runs by their names; the first is the baseline of the tests."""

    runs: dict[str, RunFiles]

    @staticmethod
    def of(folders: Sequence[Path]) -> "Comparison":
        """The runs of some folders, named by the parts of their paths in which they differ."""
        names = [folder.resolve().parts for folder in folders]
        most = max(map(len, names))
        depth = next((n for n in range(1, most + 1) if len({parts[-n:] for parts in names}) == len(names)), most)
        return Comparison(
            {shown("/".join(parts[-depth:])): RunFiles(path) for parts, path in zip(names, folders, strict=True)}
        )

    def differences(self) -> Table:
        """Settings that all runs have and that are not the same, and the commit and data where they differ."""
        found = [_facts(run.record) for run in self.runs.values()]
        names = dict.fromkeys(name for facts in found for name in facts if name not in NOT_COMPARED)
        rows = []
        for name in names:
            values = [facts[name] for facts in found if name in facts]
            if len(values) == len(found) and len(set(values)) > 1:
                rows.append((shown(name), *map(shown, values)))
        return Table(("setting", *self.runs), rows)

    def results(self) -> Table:
        """The main figures of each run, with those before training and 95% intervals where they are known."""
        rows: list[tuple[str, ...]] = []
        for label, names in CARDS:
            cells = [_result(run, names) for run in self.runs.values()]
            if any(cells):
                rows.append((label, *(cell or "–" for cell in cells)))
        for name in dict.fromkeys(name for run in self.runs.values() for name in within(run, CAPABILITY)):
            rows.append((shown(name), *(_result(run, CAPABILITY + name) or "–" for run in self.runs.values())))
        if any(few := [few_prompts(run) for run in self.runs.values()]):
            rows.append(("held-out prompts", *(f"only {n}" if n else "" for n in few)))
        seconds = [seconds_of(run) for run in self.runs.values()]
        rows.append(("time on the clock", *(duration(found) if found else "–" for found in seconds)))
        for name, (label, _) in MEMORY.items():
            found = [run.record.get(name) for run in self.runs.values()]
            if any(map(is_number, found)):
                rows.append((label, *(f"{gib:.2f} GiB" if is_number(gib) else "–" for gib in found)))
        rows.append(("cost", *(cost_of(run) or "–" for run in self.runs.values())))
        rows.append(("outcome", *(outcome(run.record)[1] for run in self.runs.values())))
        return Table(("", *self.runs), rows)

    def tests(self) -> Table:
        """The paired test of each run against the first, or why there is none."""
        (first_name, first), *others = self.runs.items()
        rows = []
        for name, run in others:
            found = paired_test(first, run)
            what = found.what if isinstance(found, PairedTest) else ""
            rows.append((f"{name} − {first_name}", what, str(found)))
        return Table(("runs", "", "difference (95%), two-sided test"), rows)

    def page(self) -> str:
        """All of it as HTML, with overlaid curves."""
        about = "On the same held-out rows: sign flips for p, the jackknife for the interval, both over prompts."
        tests, terms = self.tests(), {label: meaning for label, names in CARDS if (meaning := _meaning(names))}
        panels = [
            Panel("results", "Results", table=self.results(), terms=terms, wide=True),
            Panel("tests", "Paired tests", about, table=tests, wide=True),
        ]
        differences = self.differences()
        if differences.rows:
            panels.append(Panel("differences", "Settings that differ", table=differences, wide=True))
        lead = [f"{len(self.runs)} runs: {', '.join(self.runs)}. The first is the baseline."]
        if any(SAME_ROWS in row[-1] for row in tests.rows):
            lead.append(
                "The held-out rows of the runs differ, so their figures are of different rows: a difference may be one "
                f"of the rows. To compare them, {SAME_ROWS}."
            )
        sections = [
            Section("results", "Results", panels),
            Section("replies", "Replies", compared(self.runs)),
            Section("curves", "Curves", self._curves()),
        ]
        badge = {"kind": "neutral", "words": "comparison"}
        return render("Comparison of runs", badge, lead, (), [section for section in sections if section.panels])

    def _curves(self) -> list[Panel]:
        panels = []
        series: dict[str, Points] = {}
        for name, run in self.runs.items():
            series |= {f"{name}: {label}": points for label, points in over_optimisation_series(run).items()}
        if series:
            panels.append(over_optimisation_chart(series))
        for curve in CURVES:
            names = list(curve.series.values())
            held_out = [name for name in names if name.startswith("eval/")]
            for metric in (held_out or names)[:1]:
                found = {name: points for name, run in self.runs.items() if (points := points_of(run, metric))}
                if any(len(points) > 1 for points in found.values()):
                    title = f"{curve.title}, held out" if metric in held_out and len(names) > 1 else curve.title
                    panels.append(Panel(curve.id, title, curve.about, lines(found, y=curve.y, points=found)))
        return panels


def _facts(record: Row) -> dict[str, str]:
    config = {name: setting_text(value) for name, value in (record.get("config") or {}).items()}
    git = record.get("git") or {}
    more = {
        "commit": str(git.get("commit", "–"))[:10],
        "data": str(record.get("data_fingerprint", "–"))[:10],
        "ranks": str(record.get("world_size", "–")),
        "torch": str((record.get("versions") or {}).get("torch", "–")),
    }
    return config | more


def _meaning(names: str) -> str:
    return definition(names.partition("|")[0])


def _result(run: RunFiles, names: str) -> str:
    points = points_of(run, names)
    if not points:
        return ""
    last = kept(run, points)
    if names == KL:
        return f"{figure(last[1])} after update {last[0]:,.0f}" if last[0] else "not measured after the updates"
    interval = f" ({figure(last[2])} to {figure(last[3])})" if len(last) == 4 else ""
    changes = len(points) > 1 and points[0][0] == 0 and names != SAME_BEFORE
    before = f"{figure(points[0][1])} → " if changes else ""
    return f"{before}{figure(last[1])}{interval}"


def paired_test(first: RunFiles, second: RunFiles) -> PairedTest | str:
    """Compares two runs row by row; a sentence instead if they have no held-out rows in common."""
    what, a = held_out_values(first)
    other, b = held_out_values(second)
    if not a or not b:
        return "no results on held-out rows to compare"
    if what != other:
        return f"held-out rows are of different kinds: {what} and {other}"
    if a.keys() != b.keys():
        common = len(a.keys() & b.keys())
        return f"held-out rows differ: {len(a):,} and {len(b):,}, {common:,} of them in common; {SAME_ROWS}"
    prompts = [str(a[key][0]) for key in a]
    if (number := len(set(prompts))) < FEWEST_GROUPS:
        return f"{number} prompts are held out; needed for a test: {FEWEST_GROUPS}"
    values = [[found[key][1] for key in a] for found in (a, b)]
    bounds = (-1.0, 1.0) if what == "accuracy" else None
    return PairedTest(what, *paired_difference(values[0], values[1], prompts, bounds))


def held_out_values(run: RunFiles) -> tuple[str, dict[Hashable, tuple[Any, float]]]:
    """(what was measured, {row: (its prompt, value)}) of a run's held-out rows."""
    pairs = [row for row in run.scores if is_number(row.get("chosen")) and is_number(row.get("rejected"))]
    if pairs:
        keys = _told_apart((row.get("row"), str(row.get("lengths"))) for row in pairs)
        return "accuracy", {
            key: (row.get("prompt"), float(row["chosen"] > row["rejected"]))
            for key, row in zip(keys, pairs, strict=True)
        }
    losses = [row for row in run.held_out if is_number(row.get("loss"))]
    if losses:
        keys = _told_apart((row.get("row"),) for row in losses)
        return "loss per token", {key: (i, row["loss"]) for i, (key, row) in enumerate(zip(keys, losses, strict=True))}
    updates = run.sample_updates("evaluation")
    rows = run.samples("evaluation", updates[-1]) if updates else []
    found: dict[Hashable, tuple[Any, float]] = {}
    for row in rows:
        if not row.get("turn") and is_number(row.get("episode_reward")):
            key = row.get("task"), row.get("agent"), str(row.get("prompt"))
            found[key] = (key, float(row["episode_reward"]))
    return "held-out reward", found


def _told_apart(keys: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The keys with the number of equal ones before each: a row may be held out twice."""
    seen: Counter[tuple[Any, ...]] = Counter()
    found = []
    for key in keys:
        found.append((*key, seen[key]))
        seen[key] += 1
    return found
