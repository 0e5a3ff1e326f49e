"""The cost of a run, in run.json: this launch, the launches that it resumed, all ranks, and at any time."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from patience import PATIENCE

from lmgym.report.key_figures import total_cost
from lmgym.runs import supervisor
from lmgym.runs.record import cpu_seconds
from lmgym.runs.resuming import Start
from lmgym.runs.run import Run


def begin(folder: Path, resumed_at: int | None = None) -> Run:
    checkpoint: Any = None if resumed_at is None else SimpleNamespace(step=resumed_at)
    return Run.start(folder, {}, seed=0, tracking="none", start=Start("mine", checkpoint), stage="ppo")


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


class Clock:
    """CPU seconds of this process, as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("lmgym.runs.run.cpu_seconds", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_the_work_of_this_process_and_of_its_children_is_counted() -> None:
    before, own = cpu_seconds(), time.process_time()
    while time.process_time() < own + 0.1:
        pass
    between = cpu_seconds()
    child = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", child], check=True, timeout=PATIENCE)
    assert between - before >= 0.09  # of the two clocks one is coarser
    assert cpu_seconds() - between >= 0.19


def test_a_run_costs_what_the_process_used_since_it_began(tmp_path: Path, clock: Clock) -> None:
    for name, used in (("first", 3.0), ("second", 4.5)):
        with begin(tmp_path / name):
            clock.now += used
        assert record(tmp_path / name)["cpu_seconds"] == used
        assert record(tmp_path / name)["cpu_ranks"] == 1
        assert record(tmp_path / name)["seconds"] >= 0


def test_a_resumed_run_adds_up_what_its_launches_cost(tmp_path: Path, clock: Clock) -> None:
    run = begin(tmp_path)
    for number in range(3):
        run.update(gpus=2)  # of a machine that has them
        clock.now += 10**number
        run.finish("interrupted", 75)
        run = begin(tmp_path, resumed_at=4)
    run.finish()
    launches = [json.loads((tmp_path / f"run{number}.json").read_text()) for number in ("", ".1", ".2", ".3")]
    total = total_cost(record(tmp_path))
    assert total["launches"] == 4
    assert total["cpu_seconds"] == 111
    assert total["seconds"] == pytest.approx(sum(launch["seconds"] for launch in launches), abs=0.01)
    assert total["gpu_seconds"] == pytest.approx(sum(2 * launch["seconds"] for launch in launches[1:]), abs=0.01)


def test_a_new_run_in_the_folder_does_not_pay_for_the_former_one(tmp_path: Path) -> None:
    for _ in range(2):
        begin(tmp_path).finish()
    assert total_cost(record(tmp_path))["launches"] == 1


def test_the_cost_of_other_ranks_is_as_they_last_said(tmp_path: Path, clock: Clock) -> None:
    run = begin(tmp_path)
    clock.now += 1
    run.record_cost([1.0, 20.0, 30.0])
    killed = record(tmp_path)
    assert (killed["outcome"], killed["cpu_seconds"], killed["cpu_ranks"]) == ("running", 51, 3)
    clock.now += 2
    run.finish()
    assert (record(tmp_path)["cpu_seconds"], record(tmp_path)["cpu_ranks"]) == (53, 3)


@pytest.mark.parametrize("point", ["checkpoint", "results"])
def test_checkpoints_and_results_record_the_cost_of_all_ranks(
    point: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(value: Any) -> list[Any]:
        return [value, value + 40.0] if isinstance(value, float) else [value]

    monkeypatch.setattr(supervisor, "all_gather_objects", gather)
    run, model = begin(tmp_path), torch.nn.Linear(1, 1)
    supervised = supervisor.Supervisor(run, Start("mine"), {}, limit=1, stall_timeout=0)
    clock.now += 5
    if point == "checkpoint":
        supervised.save(1, lambda folder: None, model)
    else:
        with supervised.saving_results(model):
            pass
    assert (record(tmp_path)["cpu_seconds"], record(tmp_path)["cpu_ranks"]) == (50, 2)


def test_a_cost_is_recorded_from_another_thread_while_this_one_waits(tmp_path: Path, clock: Clock) -> None:
    run = begin(tmp_path)
    clock.now += 5
    thread = threading.Thread(target=lambda: run.finish("stalled", 70))
    thread.start()
    thread.join()
    assert record(tmp_path)["outcome"] == "stalled"
    assert record(tmp_path)["cpu_seconds"] == 5


def test_the_machine_is_recorded_with_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    begin(tmp_path / "cpu").finish()
    found = record(tmp_path / "cpu")
    assert found["cores"] >= 1
    assert 0.01 < found["peak_memory_gib"] < 1000
    assert "peak_gpu_memory_gib" not in found
    assert (found["world_size"], found["local_world_size"], found["gpus"], found["gpu_names"]) == (4, 2, 0, [])
    assert (found["stage"], found["cwd"]) == ("ppo", str(Path.cwd()))
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 8, get_device_name=lambda number: f"GPU {number}",
        is_initialized=lambda: True, max_memory_allocated=lambda: 3 << 30,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
    begin(tmp_path / "gpu").finish()
    found = record(tmp_path / "gpu")
    assert (found["gpus"], found["gpu_names"]) == (4, ["GPU 0", "GPU 1"])
    assert found["peak_gpu_memory_gib"] == 3


@pytest.mark.parametrize("bad", ["text", None, [1], {"a": 1}, -5, 10**400, float("nan"), float("inf")])
def test_costs_that_somebody_broke_count_nothing(bad: object) -> None:
    nothing = {"launches": 1, "seconds": 0, "cpu_seconds": 0, "gpu_seconds": 0}
    assert total_cost({"seconds": bad, "cpu_seconds": bad, "gpus": bad, "former": bad}) == nothing
    assert total_cost({"former": dict.fromkeys(nothing, bad)}) == nothing
