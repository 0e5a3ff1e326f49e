"""Methods: runs that differ in their seeds alone. Their figures over seeds, and tests of a difference between two.

Seeds are the sample here: each run is one figure, whatever the number of its held-out rows. A difference says what
other seeds of both methods would show; that of two runs on the same held-out rows, in comparison.py, does not.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeGuard

import numpy as np

from lmgym.config import FREE_SETTINGS, OptimizerConfig, seed_settings
from lmgym.report.charts import Points
from lmgym.report.curves import bounds_of, points_of
from lmgym.report.facts import figures_of, outcome, setting_text
from lmgym.report.key_figures import MainMetric, main_metric
from lmgym.report.panels import figure
from lmgym.report.run_files import Row, RunFiles
from lmgym.statistics import Comparison as Difference
from lmgym.statistics import Ratio, compare, holm, mean

SEEDS = seed_settings(OptimizerConfig)
SPLIT_SEED = "split_seed"  # chooses the rows: with another one the data differ
Seeds = tuple[tuple[str, str], ...]
"""settings that are seeds, with their values"""


@dataclass(frozen=True)
class Method:
    """Runs by their names, no two of which have the same seeds."""

    name: str
    runs: Mapping[str, RunFiles]

    @property
    def counted(self) -> dict[str, RunFiles]:
        """The runs of which figures are taken: those that finished, or the one that there is."""
        if len(self.runs) == 1:
            return dict(self.runs)
        return {name: run for name, run in self.runs.items() if run.record.get("outcome") == "finished"}

    @property
    def seeds(self) -> str:
        """`3 (0, 1, 2)`, or `one seed`, of the runs that are counted."""
        found = [seeds_of(run.record) for run in self.counted.values()]
        if len(found) < 2:
            return "one seed" if found else "none finished"
        varied = [name for name in sorted(SEEDS) if len({seeds.get(name) for seeds in found}) > 1]
        each = [" and ".join(f"{name} {seeds.get(name)}" for name in varied) for seeds in found]
        values = ", ".join(text.removeprefix("seed ") for text in each) if varied == ["seed"] else ", ".join(each)
        return f"{len(found)} ({values})"

    @property
    def main_metric(self) -> MainMetric | None:
        """The main metric of the runs that are counted, if it was measured."""
        stages = {run.stage for run in self.counted.values()}
        names = {name for run in self.counted.values() for name in run.metric_names}
        return main_metric(names, stages.pop() if len(stages) == 1 else "")

    @property
    def outcome(self) -> str:
        """The outcome of the runs; of several that of those that are not counted."""
        words = {name: outcome(run.record)[1] for name, run in self.runs.items()}
        if len(words) == 1:
            return next(iter(words.values()))
        others = [f"{name}: {word}, not counted" for name, word in words.items() if name not in self.counted]
        return "; ".join(others) or "finished"

    def values(self, names: str) -> dict[Seeds, tuple[float | None, float]]:
        """By the seeds of each counted run, a figure before the first update, if it was measured, and of the model that
        is kept; `names` as in `points_of`.
        """
        found = {}
        for run in self.counted.values():
            if (known := figure_of(run, names)) is not None:
                before, (_, after, *_) = known
                found[tuple(sorted(seeds_of(run.record).items()))] = (before, after)
        return found

    def mean_points(self, names: str) -> Points:
        """(update, mean over the counted runs) of the updates that all of them were measured after."""
        series = [{point[0]: point[1] for point in points_of(run, names)} for run in self.counted.values()]
        shared = sorted(set.intersection(*map(set, series))) if series else []
        return [(update, float(np.mean([values[update] for values in series]))) for update in shared]

    def result(self, names: str) -> str:
        """`0.500 → 0.712 (0.690 to 0.734)`: means over seeds and the 95% interval over seeds of the second, or `one
        seed` in place of an interval; empty without figures.
        """
        found = list(self.values(names).values())
        if not found:
            return ""
        befores = [before for before, _ in found if before is not None]
        start = f"{figure(float(np.mean(befores)))} → " if len(befores) == len(found) else ""
        estimate = mean([after for _, after in found])
        if bounds := bounds_of(names):
            estimate = estimate.within(bounds)
        if len(found) == 1:
            return f"{start}{figure(estimate.value)}, one seed"
        of = "" if len(found) == len(self.counted) else f", of {len(found)} seeds"
        if estimate.low is None:
            return f"{start}{figure(estimate.value)}, the same for all seeds{of}"
        return f"{start}{figure(estimate.value)} ({figure(estimate.low)} to {figure(estimate.high)}){of}"


@dataclass(frozen=True)
class SeedsTest:
    """The difference of the means of two methods over seeds, with its 95% interval and two-sided p."""

    what: str
    difference: Difference
    counts: tuple[int, int]
    paired: bool
    p: float
    """adjusted for the number of tests"""

    def __str__(self) -> str:
        found = self.difference
        first, second = self.counts
        seeds = f"{first} seeds each" if first == second else f"{second} and {first} seeds"
        how = f"{seeds}, {'paired' if self.paired else 'Welch'}"
        if math.isnan(found.low):
            return f"{found.difference:+.3f}, without variance between seeds: no test; {how}"
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"
        return f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f}), {p}; {how}"


def seeds_tests(methods: Sequence[Method]) -> list[SeedsTest | str]:
    """For each method but the first, its difference from that in the main metric of their stage, or why none is tested.

    Student's t test of the differences by seed where both have the same seeds, else Welch's. p-values are adjusted for
    their number (Holm 1979).
    """
    found = [_seeds_test(methods[0], method) for method in methods[1:]]
    adjusted = iter(holm([test.p for test in found if _is_tested(test)]))
    return [replace(test, p=next(adjusted)) if _is_tested(test) else test for test in found]


def _is_tested(test: SeedsTest | str) -> TypeGuard[SeedsTest]:
    return isinstance(test, SeedsTest) and not math.isnan(test.p)


def _seeds_test(first: Method, second: Method) -> SeedsTest | str:
    metric, other = first.main_metric, second.main_metric
    if metric is None or other is None:
        return f"no finished run of {(first if metric is None else second).name} has a result on held-out rows"
    if metric != other:
        return f"results are of different kinds: {metric.label} and {other.label}"
    values = [{seeds: after for seeds, (_, after) in method.values(metric.name).items()} for method in (first, second)]
    if few := [method.name for method, known in zip((first, second), values, strict=True) if len(known) < 2]:
        return f"one seed of {' and of '.join(few)}: no test; needed: two seeds or more of both"
    paired = values[0].keys() == values[1].keys()
    a, b = (np.array([known[seeds] for seeds in sorted(known)]) for known in values)
    difference = compare(Ratio(a, np.ones(len(a))), Ratio(b, np.ones(len(b))), paired)
    return SeedsTest(metric.label, difference, (len(a), len(b)), paired, difference.p_value)


def figure_of(run: RunFiles, names: str) -> tuple[float | None, tuple[float, ...]] | None:
    """(a figure before the first update where that differs, the point of the model that is kept); None without one."""
    before, after = figures_of(run, names)
    return None if after is None else (before[1] if before else None, after)


def facts_of(record: Row) -> dict[str, str]:
    """The facts of a run: its settings, commit, data, ranks and version of torch."""
    config = {name: setting_text(value) for name, value in (record.get("config") or {}).items()}
    git = record.get("git") or {}
    more = {
        "commit": str(git.get("commit", "–"))[:10],
        "data": str(record.get("data_fingerprint", "–"))[:10],
        "ranks": str(record.get("world_size", "–")),
        "torch": str((record.get("versions") or {}).get("torch", "–")),
    }
    return config | more


def seeds_of(record: Row) -> dict[str, str]:
    """A run's seeds by their settings; those that it did not record are left out."""
    return {name: value for name, value in facts_of(record).items() if name in SEEDS}


def methods_of(runs: Mapping[str, RunFiles], ignored: Collection[str] = ()) -> list[Method]:
    """The methods of some runs, in their order; each run is of the first that it belongs to, or begins another.

    Runs of a method have the same commit, data and settings on which training depends, apart from those `ignored`; no
    two have the same seeds. Ranks and versions of torch may differ: they change rounding alone.
    """
    found: list[dict[str, RunFiles]] = []
    for name, run in runs.items():
        fits = (own for own in found if all(_are_alike(run, other, ignored) for other in own.values()))
        own = next(fits, None)
        if own is None:
            found.append({name: run})
        else:
            own[name] = run
    return [Method(_name_of(list(own), runs), own) for own in found]


def _are_alike(run: RunFiles, other: RunFiles, ignored: Collection[str]) -> bool:
    """True if two runs differ in their seeds and in nothing else that a result may depend on."""
    return seeds_of(run.record) != seeds_of(other.record) and _same_but_seeds(run, other, ignored)


def _same_but_seeds(run: RunFiles, other: RunFiles, ignored: Collection[str]) -> bool:
    own, others = facts_of(run.record), facts_of(other.record)
    free = {*FREE_SETTINGS, *SEEDS, *ignored, "ranks", "torch"}
    if own.get(SPLIT_SEED) != others.get(SPLIT_SEED):
        free.add("data")
    decisive = [{name: value for name, value in facts.items() if name not in free} for facts in (own, others)]
    return decisive[0] == decisive[1]


def twins(methods: Sequence[Method], ignored: Collection[str] = ()) -> list[str]:
    """A sentence on each method with runs that only their folders tell apart from those of one before it."""
    found = []
    for place, method in enumerate(methods):
        name, run = next(iter(method.runs.items()))
        others = ((n, other) for before in methods[:place] for n, other in before.runs.items())
        for other_name, other in others:
            if _same_but_seeds(run, other, ignored) and seeds_of(run.record) == seeds_of(other.record):
                copied = run.record.get("id") is not None and run.record.get("id") == other.record.get("id")
                what = "is a copy of" if copied else "has the settings, seeds, commit and data of"
                more = "" if copied else ": nothing that was recorded tells the two apart"
                found.append(f"{name} {what} {other_name}{more}.")
                break
    return found


def _name_of(own: Sequence[str], names: Collection[str]) -> str:
    """`grpo_s*` for the runs grpo_s0, grpo_s1, ...; their first and number where that would match other runs too."""
    if len(own) == 1:
        return own[0]
    start = _shared_start(own)
    end = _shared_start([name[len(start) :][::-1] for name in own])[::-1]
    matched = [name for name in names if name.startswith(start) and name[len(start) :].endswith(end)]
    if (start or end) and len(matched) == len(own):
        return f"{start}*{end}"
    return f"{own[0]} and {len(own) - 1} more"


def _shared_start(texts: Sequence[str]) -> str:
    """The characters with which all texts begin."""
    same = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in same)
