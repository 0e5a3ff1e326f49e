"""Time by phase and memory of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmgym.report.costs import costs, phases
from lmgym.report.run_files import RunFiles


def run(folder: Path, lines: list[dict[str, float]], **record: Any) -> RunFiles:
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunFiles(folder)


def test_phases_add_up_to_the_time_on_the_clock(tmp_path: Path) -> None:
    lines = [
        {"step": 4, "time": 9, "time/generate": 10, "time/score": 5, "time/rollout": 15, "time/iteration": 35},
        {"step": 8, "time": 9, "time/generate": 20, "time/backward": 20, "time/evaluate": 15},
    ]
    [panel] = phases(run(tmp_path, lines, seconds=80.0, former={"seconds": 20.0}))
    assert panel.table is not None
    assert panel.table.rows == [
        ("sampling replies", "30 s", "30%"), ("start, loading, saving and all else", "30 s", "30%"),
        ("updates", "20 s", "20%"), ("evaluation", "15 s", "15%"), ("computing rewards", "5 s", "5%"),
    ]  # fmt: skip
    assert panel.terms["sampling replies"] == "Time of sampling replies. Unit: seconds."


def test_a_run_that_goes_on_has_phases_of_its_time_so_far(tmp_path: Path) -> None:
    [panel] = phases(run(tmp_path, [{"step": 2, "time": 40, "time/train": 30}]))
    assert panel.table is not None
    assert panel.table.rows[0] == ("training", "30 s", "75%")


def test_a_run_without_phases_has_no_panel(tmp_path: Path) -> None:
    assert phases(run(tmp_path, [{"step": 2, "time": 40}], seconds=50)) == []


@pytest.mark.parametrize(
    ("record", "values"),
    [
        ({"seconds": 60, "cpu_seconds": 120, "peak_memory_gib": 2.5}, ["60 s", "2 min of CPU time", "2.50 GiB"]),
        ({"seconds": 60, "gpus": 2, "peak_gpu_memory_gib": 70, "peak_memory_gib": "x"},
         ["60 s", "2 min of GPU time", "70.00 GiB"]),
        ({"seconds": 60}, ["60 s"]),
        ({}, []),
    ],
)  # fmt: skip
def test_cards_have_the_clock_the_cost_and_the_memory(record, values: list[str], tmp_path: Path) -> None:
    assert [card.value for card in costs(run(tmp_path, [], **record))] == values
