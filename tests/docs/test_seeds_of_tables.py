"""Tables of results name their seeds, and figures over seeds are those of the runs that benchmarks recorded."""

import json
import re
from collections.abc import Iterator

import numpy as np
import pytest
from printed_blocks import ROOT

from lmgym.statistics import Ratio, compare, mean

PAGES = ("README.md", "docs/methods.md", "docs/results.md")
INTERVAL = re.compile(r"\([+-]?\d*\.\d+ to [+-]?\d*\.\d+")
SEED = re.compile(r"\bseeds?\b")


def tables(page: str) -> Iterator[tuple[str, str]]:
    """(a table, itself with the paragraphs before and after it) of a page."""
    blocks = re.split(r"\n\s*\n", (ROOT / page).read_text(encoding="utf-8"))
    for place, block in enumerate(blocks):
        if "\n|---|" in block:
            yield block, "\n".join(blocks[max(0, place - 1) : place + 2])


def rows(page: str, header: str) -> dict[str, list[str]]:
    """The cells of the table with this header, by the first of each row without its backquotes."""
    [table] = [table for table, _ in tables(page) if table.startswith(header)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return {first.strip("`"): others for first, *others in cells}


def recorded(part: str) -> dict[str, list[dict]]:
    """Runs of benchmarks/methods.py by method, in the order of their seeds."""
    found = json.loads((ROOT / "benchmarks/results/methods.json").read_text())[part]
    return {method: sorted(runs, key=lambda run: run["seed"]) for method, runs in found.items()}


def printed(number: float, spec: str) -> str:
    """A number as in the tables: without the 0 before the point."""
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{number:{spec}}")


@pytest.mark.parametrize("page", PAGES)
def test_a_table_with_intervals_says_of_how_many_seeds_it_is(page: str) -> None:
    found = [(table, around) for table, around in tables(page) if INTERVAL.search(table)]
    assert found
    assert [table.splitlines()[0] for table, around in found if not SEED.search(around)] == []


def test_means_over_seeds_on_graph_1000_are_those_of_the_recorded_runs() -> None:
    found = rows("docs/methods.md", "| | seeds 0, 1, 2 |")
    runs = recorded("walks")
    assert found.keys() == runs.keys()
    for method, own in runs.items():
        values = [run["sampled"] for run in own]
        estimate = mean(values).within((0, 1))
        low, high = printed(estimate.low, ".3f"), printed(estimate.high, ".3f")
        assert found[method][:2] == [
            ", ".join(printed(value, ".3f") for value in values),
            f"{printed(estimate.value, '.3f')} ({low} to {high})",
        ], method


def test_gains_over_seeds_in_the_world_are_those_of_the_recorded_runs() -> None:
    found = rows("docs/methods.md", "| | gain at the end, mean (95% over seeds) |")
    ends = {method: np.array([run["curve"][-1]["gain"] for run in own]) for method, own in recorded("world").items()}
    assert found.keys() == ends.keys()
    for method, values in ends.items():
        estimate = mean(values)
        ours = [
            f"{printed(estimate.value, '+.2f')} ({printed(estimate.low, '.2f')} to {printed(estimate.high, '.2f')})",
            "",
        ]
        if method != "ppo":
            difference = compare(Ratio(ends["ppo"], np.ones(3)), Ratio(values, np.ones(3)), paired=True)
            low, high = printed(difference.low, ".2f"), printed(difference.high, ".2f")
            ours[1] = f"{printed(difference.difference, '+.2f')} ({low} to {high})"
            assert difference.low < 0 < difference.high  # no method is shown to differ from PPO
        assert found[method] == ours, method


def test_the_mean_accuracy_on_real_pairs_over_seeds_is_that_of_the_recorded_runs() -> None:
    runs = json.loads((ROOT / "benchmarks/results/real_data.json").read_text())["runs"]
    usual, swapped = (
        mean([run[kind]["metrics"]["accuracy"] for run in runs]) for kind in ("labels as they are", "labels swapped")
    )
    said = f"Mean over seeds {usual.value:.3f} (95% {usual.interval('.3f')}), swapped {swapped:.3f}."
    assert said in (ROOT / "docs/results.md").read_text(encoding="utf-8")
