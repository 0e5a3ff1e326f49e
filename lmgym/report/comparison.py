"""Several runs side by side: settings that differ, results, curves, and a paired test on the same held-out rows."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lmgym.errors import InputError, did_you_mean
from lmgym.report.charts import Points, lines
from lmgym.report.costs import MEMORY, cost_of, seconds_of
from lmgym.report.curve_table import CAPABILITY, CURVES, Curve
from lmgym.report.curves import (
    about_lines,
    over_optimisation_chart,
    over_optimisation_series,
    points_of,
    unit_of,
    within,
)
from lmgym.report.facts import CARDS, few_prompts, figures_of, measured_after, no_result, outcome
from lmgym.report.key_figures import NONE_YET, after_update, main_metric
from lmgym.report.known_metrics import definition, title_of
from lmgym.report.methods import Method, SeedsTest, facts_of, methods_of, seeds_of, seeds_tests, twins
from lmgym.report.page import render
from lmgym.report.panels import Panel, Section, Table, duration, figure
from lmgym.report.run_files import RunFiles, is_number
from lmgym.report.samples import compared, shown
from lmgym.statistics import FEW, Estimate, paired_difference

FEWEST_GROUPS = 6  # with fewer, no permutation of signs has a p below .05
SAME_ROWS = (
    "give all runs the same rows to be tested: one --eval_dataset FILE (PPO: --eval_prompts), or the same data with "
    "one --split_seed and --eval_size"
)
NOT_COMPARED = frozenset({"output", "name", "tracking", "resume", "dry_run"})
OVER_SEEDS = (
    "A method is the runs that differ in their seeds alone: the same settings, commit and data. Its figures are means "
    "over its finished runs, with 95% intervals over seeds (Student's t): how much other seeds would change them."
)
OF_METHODS = (
    "Would other seeds of these methods differ too? Seeds are the sample, each run is one figure, and the "
    "held-out rows are taken as they are. Student's t, paired where both methods have the same seeds, else Welch's; "
    "p is adjusted for the number of these tests (Holm)."
)
OF_RUNS = (
    "Do these two models differ on other rows like these? Held-out rows are the sample, and the runs are taken as they "
    "are: with one seed each, nothing is known about other seeds of their methods. Sign flips for p, the jackknife for "
    "the interval, both over prompts."
)
THIN = "Thin lines are runs, thick ones the mean of a method's finished runs."


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
    """Runs by their names, and as methods; the first is the baseline of the tests."""

    runs: dict[str, RunFiles]
    methods: Sequence[Method]
    ignored: Collection[str] = ()
    """settings that tell no methods apart"""

    @staticmethod
    def of(
        folders: Sequence[Path], ignored: Collection[str] = (), killed: Collection[Path] = frozenset()
    ) -> "Comparison":
        """The runs of some folders, named by the parts of their paths in which they differ.

        Those `killed` wrote no end. Raises InputError for an ignored setting that no run has.
        """
        names = [_parts(folder) for folder in folders]
        most = max(map(len, names))
        depth = next((n for n in range(1, most + 1) if len({parts[-n:] for parts in names}) == len(names)), most)
        runs = {
            shown("/".join(parts[-depth:])): RunFiles(path, killed=path in killed)
            for parts, path in zip(names, folders, strict=True)
        }
        known = dict.fromkeys(name for run in runs.values() for name in facts_of(run.record))
        if unknown := [name for name in ignored if name not in known]:
            near = did_you_mean(unknown[0], known)
            raise InputError(f"--ignore {shown(unknown[0])}: no run has a setting of that name; {near}")
        return Comparison(runs, methods_of(runs, ignored), ignored)

    @property
    def over_seeds(self) -> bool:
        """True if a method has several runs."""
        return len(self.methods) < len(self.runs)

    @property
    def shown_runs(self) -> dict[str, RunFiles]:
        """The runs whose replies are shown: the first that is counted of each method, or all of a single method."""
        if len(self.methods) == 1:
            return self.runs
        return dict(next(iter((method.counted or method.runs).items())) for method in self.methods)

    def differences(self) -> Table:
        """Settings that all runs have and that are not the same, and the commit and data where they differ."""
        found = {name: facts_of(run.record) for name, run in self.runs.items()}
        names = dict.fromkeys(name for facts in found.values() for name in facts if name not in NOT_COMPARED)
        rows = []
        for name in names:
            values = [facts[name] for facts in found.values() if name in facts]
            if len(values) == len(found) and len(set(values)) > 1:
                of_methods = [dict.fromkeys(found[run][name] for run in method.runs) for method in self.methods]
                rows.append((shown(name), *(", ".join(map(shown, values)) for values in of_methods)))
        return Table(("setting", *(method.name for method in self.methods)), rows)

    def results(self) -> Table:
        """The main figures of each method: of its run, before training and with 95% intervals where they are known, or
        means over seeds where a method has several runs.
        """
        if self.over_seeds:
            return self._results_over_seeds()
        rows = self._figures(lambda method, names: _result(self.runs[method.name], names))
        runs = self.runs.values()
        updates = [measured_after(run) for run in runs]
        rows.append(("measured", *("–" if update is None else after_update(update) for update in updates)))
        if any(few := [few_prompts(run) for run in runs]):
            rows.append(("held-out prompts", *(f"only {n}" if n else "" for n in few)))
        rows.append(("seeds", *(method.seeds for method in self.methods)))
        rows.append(("time on the clock", *(duration(found) if (found := seconds_of(run)) else "–" for run in runs)))
        for name, (label, _) in MEMORY.items():
            memory = [run.record.get(name) for run in runs]
            if any(map(is_number, memory)):
                rows.append((label, *(f"{gib:.2f} GiB" if is_number(gib) else "–" for gib in memory)))
        rows.append(("cost", *(cost_of(run) or "–" for run in runs)))
        rows.append(("outcome", *(outcome(run.record)[1] for run in runs)))
        return Table(("", *self.runs), rows)

    def _figures(self, cell: Callable[[Method, str], str]) -> list[tuple[str, ...]]:
        """A row per figure that any method has."""
        capabilities = dict.fromkeys(name for run in self.runs.values() for name in within(run, CAPABILITY))
        rows = []
        for name in (*CARDS, *(CAPABILITY + name for name in capabilities)):
            cells = [cell(method, name) for method in self.methods]
            if any(cells):
                rows.append((shown(title_of(name)), *(cell or "–" for cell in cells)))
        return rows

    def _results_over_seeds(self) -> Table:
        rows = self._figures(Method.result)
        rows.append(("seeds", *(method.seeds for method in self.methods)))
        rows.append(("outcome", *(method.outcome for method in self.methods)))
        return Table(("", *(method.name for method in self.methods)), rows)

    def single_runs(self) -> Table:
        """The main figure of each run with its interval over held-out rows, where a method has several runs."""
        rows = []
        for method in self.methods if self.over_seeds else ():
            for name, run in method.runs.items():
                metric = main_metric(run.metric_names, run.stage)
                result = f"{metric.label} {_result(run, metric.name)}" if metric else "–"
                few = f", only {n} held-out prompts" if (n := few_prompts(run)) else ""
                rows.append((name, method.name, f"{result}{few}", cost_of(run) or "–", outcome(run.record)[1]))
        return Table(("run", "method", "result (95% over held-out rows)", "cost", "outcome"), rows)

    def seeds_tests(self) -> Table:
        """The test over seeds of each method against the first, where a method has several runs."""
        first, *others = self.methods
        rows = []
        for method, found in zip(others, seeds_tests(self.methods), strict=True) if self.over_seeds else ():
            what = found.what if isinstance(found, SeedsTest) else ""
            rows.append((f"{method.name} − {first.name}", what, str(found)))
        return Table(("methods", "", "difference of means (95% over seeds), two-sided test"), rows)

    def tests(self) -> Table:
        """The paired test of two runs on the same held-out rows, or why there is none: of each other method's run with
        the baseline's of the same seeds, or else with its first; of one method its runs with the first.
        """
        rows = []
        for (first_name, first), (name, run) in self._pairs():
            found = paired_test(first, run)
            what = found.what if isinstance(found, PairedTest) else ""
            rows.append((f"{name} − {first_name}", what, str(found)))
        return Table(("runs", "", "difference (95% over held-out rows), two-sided test"), rows)

    def _pairs(self) -> Iterator[tuple[tuple[str, RunFiles], tuple[str, RunFiles]]]:
        baseline, *others = self.methods
        bases = list(baseline.counted.items())
        if not bases:
            return
        for item in (item for method in others for item in method.counted.items()):
            seeds = seeds_of(item[1].record)
            yield next((base for base in bases if seeds_of(base[1].record) == seeds), bases[0]), item
        if not others:
            yield from ((bases[0], item) for item in bases[1:])

    def tables(self) -> list[Panel]:
        """Every table with a sentence on what it says, for a terminal and the page; empty ones are left out."""
        terms = {title_of(name): definition(name) for name in CARDS}
        over = self.over_seeds
        title = "Results: means over seeds" if over else "Results"
        panels = [
            Panel("results", title, OVER_SEEDS * over, table=self.results(), terms=terms, wide=True),
            Panel("runs", "Single runs", table=self.single_runs(), wide=True),
            Panel("seeds_tests", "Tests of methods, over seeds", OF_METHODS, table=self.seeds_tests(), wide=True),
            Panel("tests", "Paired tests of two runs, one seed each", OF_RUNS, table=self.tests(), wide=True),
            Panel("differences", "Settings that differ", table=self.differences(), wide=True),
        ]
        return [panel for panel in panels if panel.table and panel.table.rows]

    def notes(self) -> list[str]:
        """Sentences on what the figures cannot say."""
        found = twins(self.methods, self.ignored)
        found += [f"{name} has no result yet: {why}." for name, run in self.runs.items() if (why := no_result(run))]
        for method in self.methods:
            rows = {frozenset(held_out_values(run)[1]) for run in method.counted.values()}
            if len(rows) > 1:
                found.append(
                    f"The runs of {method.name} are tested on different held-out rows: their spread is that of seeds "
                    "and of rows."
                )
        if any(SAME_ROWS in row[-1] for row in self.tests().rows):
            found.append(
                "The held-out rows of the runs differ, so their figures are of different rows: a difference may be one "
                f"of the rows. To compare them, {SAME_ROWS}."
            )
        return found

    def page(self) -> str:
        """All of it as HTML, with overlaid curves."""
        names = ", ".join(method.name for method in self.methods)
        number = f"{len(self.runs)} runs of {len(self.methods)} method{'s' * (len(self.methods) > 1)}"
        lead = [f"{number if self.over_seeds else f'{len(self.runs)} runs'}: {names}. The first is the baseline."]
        about = " Of each method its first run." if len(self.shown_runs) < len(self.runs) else ""
        replies = [replace(panel, about=panel.about + about) for panel in compared(self.shown_runs)]
        sections = [
            Section("results", "Results", self.tables()),
            Section("replies", "Replies", replies),
            Section("curves", "Curves", self._curves(about)),
        ]
        badge = {"kind": "neutral", "words": "comparison"}
        found = [section for section in sections if section.panels]
        return render("Comparison of runs", badge, [*lead, *self.notes()], (), found)

    def _curves(self, about: str) -> list[Panel]:
        panels = []
        series: dict[str, Points] = {}
        for name, run in self.shown_runs.items():
            series |= {f"{name}: {label}": points for label, points in over_optimisation_series(run).items()}
        if series:
            chart = over_optimisation_chart(series)
            panels.append(replace(chart, about=chart.about + about))
        for curve in CURVES:
            names = list(curve.series.values())
            held_out = [name for name in names if name.startswith("eval/")]
            for metric in (held_out or names)[:1]:
                title = f"{curve.title}, held out" if metric in held_out and len(names) > 1 else curve.title
                panels += self._curve(curve, metric, title)
        return panels

    def _curve(self, curve: Curve, metric: str, title: str) -> list[Panel]:
        """The chart of a metric, if it was measured more than once: a line a run, or a method's mean over them."""
        found = {
            method.name: [points for run in method.runs.values() if (points := points_of(run, metric))]
            for method in self.methods
        }
        found = {name: own for name, own in found.items() if own}
        if not any(len(points) > 1 for own in found.values() for points in own):
            return []
        first = next(run for run in self.runs.values() if points_of(run, metric))
        unit = unit_of(curve, first)
        if not self.over_seeds:
            series = {name: own[0] for name, own in found.items()}
            return [Panel(curve.id, title, about_lines(curve, series, first), lines(series, y=unit, points=series))]
        means = {method.name: method.mean_points(metric) for method in self.methods if method.name in found}
        chart = lines(means, y=unit, points=means, single=found)
        return [Panel(curve.id, title, f"{curve.about} {THIN}".strip(), chart)]


def _parts(folder: Path) -> tuple[str, ...]:
    """The parts of a run's path; that of a numbered run has its experiment's folder: `hh/2`."""
    *above, last = folder.resolve().parts
    return (*above[:-1], f"{above[-1]}/{last}") if last.isdecimal() and len(above) > 1 else (*above, last)


def _result(run: RunFiles, names: str) -> str:
    """The figure of a run before and after, with its interval over held-out rows; empty without one."""
    before, after = figures_of(run, names)
    usual = measured_after(run)
    start = f"{figure(before[1])} → " if before else ""
    if after is None:
        return f"{start}{NONE_YET}" if before else ""
    interval = f" ({figure(after[2])} to {figure(after[3])})" if len(after) == 4 else ""
    return f"{start}{figure(after[1])}{interval}{'' if after[0] in (0, usual) else f', {after_update(after[0])}'}"


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
    updates = [update for update in run.sample_updates("evaluation") if update > 0]
    after = [update for update in updates if update == run.kept_update] or updates[-1:]
    rows = run.samples("evaluation", after[0]) if after else []
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
