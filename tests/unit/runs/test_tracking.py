"""The choice of a tracker and its message; and no tracker stops a run."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from patience import PATIENCE

from lmgym.aids import failures
from lmgym.config import RunConfig
from lmgym.errors import InputError
from lmgym.runs.resuming import Start
from lmgym.runs.run import Run
from lmgym.runs.trackers import TrackedRun
from lmgym.runs.tracking import (
    Tracking,
    adopt_original_token_names,
    choose,
    hub_token,
    refuse_missing_tracker,
    start_tracker,
)

NAMES = ("WANDB_API_KEY", "WANDB_AUTH_TOKEN", "WANDB_MODE", "WANDB_PROJECT", "HF_TOKEN", "HUGGINGFACE_TOKEN")
KEY = {"WANDB_API_KEY": "k" * 40}


@pytest.fixture(autouse=True)
def _no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        # set first, so that what the code under test sets is taken back too
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


class FakeSettings:
    """Takes the settings that it knows, like the real one."""

    model_fields = ("init_timeout", "silent")

    def __init__(self, init_timeout: float, silent: bool) -> None:
        self.init_timeout = init_timeout


class FakeWandb:
    """A wandb that records its calls and fails at one of them."""

    Settings = FakeSettings

    def __init__(self, fails_at: str = "") -> None:
        self.fails_at = fails_at
        self.started: dict[str, Any] = {}
        self.lines: list[dict[str, float]] = []
        self.calls: list[str] = []

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name == self.fails_at:
            raise RuntimeError(f"{name} is down\nand says so at length")

    def init(self, **started: Any) -> Any:
        self._called("init")
        self.started = started
        actions = {"define_metric": lambda *a, **k: None, "log": self.log, "finish": self.finish}
        return SimpleNamespace(url="https://fake", starting_step=0, **actions)

    def log(self, line: dict[str, float], step: int) -> None:
        self._called("log")
        self.lines.append(line)

    def finish(self) -> None:
        self._called("finish")


def tracked(folder: Path, config: dict[str, Any] | None = None) -> TrackedRun:
    return TrackedRun(folder, "named", "f" * 32, config or {})


def run_with(fake: FakeWandb, monkeypatch: pytest.MonkeyPatch, folder: Path, tracking: str = "offline") -> None:
    """A whole life of a tracker on the fake."""
    monkeypatch.setitem(sys.modules, "wandb", fake)
    tracker = start_tracker(tracking, tracked(folder, {"seed": 1}))  # type: ignore[arg-type]
    tracker.log(1, {"loss": 2.0})
    tracker.log(2, {"loss": 1.0})
    tracker.finish()
    tracker.log(3, {"loss": 0.0})


@pytest.mark.parametrize(
    ("tracking", "environment", "mode"),
    [
        ("auto", {}, "none"),
        ("auto", {"WANDB_API_KEY": ""}, "none"),
        ("auto", KEY, "online"),
        ("auto", {"WANDB_AUTH_TOKEN": "k"}, "online"),
        ("auto", KEY | {"WANDB_MODE": "offline"}, "offline"),
        ("auto", {"WANDB_MODE": "offline"}, "offline"),
        ("auto", KEY | {"WANDB_MODE": "disabled"}, "none"),
        ("auto", {"WANDB_MODE": "online"}, "none"),
        ("wandb", KEY, "online"),
        ("wandb", {}, "offline"),
        ("wandb", KEY | {"WANDB_MODE": "disabled"}, "none"),
        ("offline", KEY, "offline"),
        ("offline", {}, "offline"),
        ("none", KEY | {"WANDB_MODE": "offline"}, "none"),
        ("tensorboard", KEY, "none"),
        ("wandb,tensorboard", KEY, "online"),
        ("wandb,tensorboard", {}, "offline"),
        ("wandb,tensorboard", KEY | {"WANDB_MODE": "disabled"}, "none"),
        ("offline,tensorboard", KEY, "offline"),
        ("trackio", KEY, "none"),
    ],
)
def test_the_choice_follows_what_is_asked_the_key_and_wandb_mode(
    tracking: str, environment: dict[str, str], mode: str
) -> None:
    choice = choose(tracking, environment)
    assert choice.mode == mode
    assert choice.tensorboard == ("tensorboard" in tracking)
    assert choice.trackio == ("trackio" in tracking)


def test_the_choice_is_said_in_one_line_with_its_reason() -> None:
    assert str(choose("auto", {})) == (
        "tracking: metrics.jsonl only (no WANDB_API_KEY found; --tracking offline records a wandb run without one)"
    )
    assert "offline (no WANDB_API_KEY found" in str(choose("wandb", {}))
    assert KEY["WANDB_API_KEY"] not in str(choose("auto", KEY))
    assert str(choose("tensorboard", KEY)) == "tracking: metrics.jsonl and tensorboard (as requested)"
    assert str(choose("offline,tensorboard", {})) == (
        "tracking: metrics.jsonl and tensorboard and wandb, offline (as requested)"
    )


def test_an_unknown_choice_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"tracking='mlflow'; needed one of 'auto', .*, 'wandb,tensorboard', .*'none'"):
        choose("mlflow", {})


def test_wandb_gets_config_folder_steps_and_a_limit_on_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeWandb()
    run_with(fake, monkeypatch, tmp_path)
    assert fake.lines == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    assert fake.calls == ["init", "log", "log", "finish"]
    given = {"mode": "offline", "dir": str(tmp_path), "name": "named", "config": {"seed": 1}, "id": "f" * 32}
    assert given.items() <= fake.started.items()
    assert 0 < fake.started["settings"].init_timeout <= 60
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("point", ["init", "log", "finish"])
def test_a_tracker_that_fails_is_dropped_with_one_line_and_never_called_again(
    point: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeWandb(fails_at=point)
    run_with(fake, monkeypatch, tmp_path)
    action = "start" if point == "init" else point
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: wandb: {action} failed (RuntimeError: {point} is down")
    assert fake.calls[-1] == point
    assert fake.calls.count(point) == 1


def test_a_machine_without_wandb_continues_without_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # Python's own way to say: not there
    tracker = start_tracker("offline", tracked(tmp_path))
    tracker.log(1, {"loss": 2.0})
    tracker.finish()
    assert "warning: wandb: start failed (ModuleNotFoundError" in capsys.readouterr().err


def test_the_original_name_of_the_wandb_key_takes_it_online(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_AUTH_TOKEN", "original")
    fake = FakeWandb()
    run_with(fake, monkeypatch, tmp_path, tracking="auto")
    assert fake.started["mode"] == "online"
    assert os.environ["WANDB_API_KEY"] == "original"  # pragma: allowlist secret


def test_the_hub_token_comes_from_either_name_and_todays_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_token() is None
    monkeypatch.setenv("HUGGINGFACE_TOKEN", "original")
    assert hub_token() == "original"
    adopt_original_token_names()
    assert os.environ["HF_TOKEN"] == "original"
    monkeypatch.setenv("HF_TOKEN", "today")
    adopt_original_token_names()
    assert hub_token() == os.environ["HF_TOKEN"] == "today"


LIFE = """
import sys
from pathlib import Path
from lmgym.runs.trackers import TrackedRun
from lmgym.runs.tracking import start_tracker

tracker = start_tracker(sys.argv[1], TrackedRun(Path(sys.argv[2]), "named", "f" * 32, {"seed": 1}))
tracker.log(2, {"loss": 2.0})
tracker.log(1, {"loss": float("nan")})
tracker.finish()
print("wandb" in sys.modules)
"""


def life(tracking: str, folder: Path) -> list[str]:
    """The output of a process that tracks two lines; a separate process, because wandb leaves a service behind."""
    command = [sys.executable, "-c", LIFE, tracking, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )
    return (done.stdout + done.stderr).splitlines()


def test_files_alone_never_import_wandb(tmp_path: Path) -> None:
    assert life("auto", tmp_path)[-1] == "False"


def test_a_real_offline_run_is_recorded_in_the_folder(tmp_path: Path) -> None:
    said = life("offline", tmp_path)
    assert said == ["tracking: metrics.jsonl and wandb, offline (as requested)", "True"]
    (record,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"loss" in record.read_bytes()


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by metric, as TensorBoard itself reads a run's folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def run_of(folder: Path, tracking: Tracking = "tensorboard", start: Start | None = None) -> Run:
    return Run.start(folder, {}, seed=0, tracking=tracking, start=start)


def test_the_flag_offers_every_choice() -> None:
    assert get_args(get_type_hints(RunConfig)["tracking"]) == get_args(Tracking)


def test_tensorboard_reads_every_metric_at_its_step(tmp_path: Path) -> None:
    with run_of(tmp_path) as run:
        run.log(0, {"eval/accuracy": 0.5})
        run.log(10, {"train/loss": 2.0, "eval/accuracy": 0.75})
        run.log(20, {"train/loss": 1.0})
        run.log(10, {"late": 3.0})
    assert points(tmp_path) == {
        "eval/accuracy": [(0, 0.5), (10, 0.75)],
        "train/loss": [(10, 2.0), (20, 1.0)],
        "late": [(10, 3.0)],
    }


def test_after_a_resume_tensorboard_has_each_step_once(tmp_path: Path) -> None:
    run = run_of(tmp_path, start=Start("mine"))
    for step in (0, 10, 20, 30):
        run.log(step, {"loss": float(step)})
    run.finish("interrupted", 75)
    resumed = Start("mine", SimpleNamespace(step=10))  # type: ignore[arg-type]
    with run_of(tmp_path, start=resumed) as run:
        for step in (20, 30, 40):
            run.log(step, {"loss": -float(step)})
    assert points(tmp_path) == {"loss": [(0, 0.0), (10, 10.0), (20, -20.0), (30, -30.0), (40, -40.0)]}


def test_a_new_run_in_the_folder_does_not_mix_its_events_with_the_former_ones(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with run_of(tmp_path) as run:
            run.log(5, {"loss": value})
    assert points(tmp_path) == {"loss": [(5, 2.0)]}
    assert list((tmp_path / "tensorboard.1").iterdir())


def test_wandb_and_tensorboard_get_the_same_lines_and_one_that_fails_leaves_the_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeWandb()
    run_with(fake, monkeypatch, tmp_path / "both", tracking="offline,tensorboard")
    assert [(line["step"], line["loss"]) for line in fake.lines] == points(tmp_path / "both")["loss"]
    capsys.readouterr()
    run_with(FakeWandb(fails_at="log"), monkeypatch, tmp_path / "failing", tracking="offline,tensorboard")
    assert points(tmp_path / "failing") == {"loss": [(1, 2.0), (2, 1.0)]}
    line = "warning: wandb: log failed (RuntimeError: log is down and says so at length); the run goes on without it"
    assert capsys.readouterr().err.splitlines() == [line]
    assert failures() == [line], "for the record of a run"


def test_a_disk_that_takes_no_event_files_leaves_the_run_without_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensorboard").write_text("a file in its place")
    tracker = start_tracker("tensorboard", tracked(tmp_path))
    tracker.log(1, {"loss": 2.0})
    tracker.finish()
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("warning: tensorboard: start failed (FileExistsError")


@pytest.mark.parametrize("tracking", ["tensorboard", "wandb,tensorboard", "trackio"])
def test_a_tracker_that_is_not_installed_is_refused_with_its_command(
    tracking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "found")
    refuse_missing_tracker(tracking)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuse_missing_tracker("wandb")
    package = tracking.rpartition(",")[2]
    with pytest.raises(InputError, match=rf'which is not installed; pip install "lmgym\[{package}\]"') as caught:
        refuse_missing_tracker(tracking)
    assert len(str(caught.value).splitlines()) == 1


def test_a_run_without_its_tracker_is_refused_before_the_ranks_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from lmgym.config import ModelConfig
    from lmgym.training import plan

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(plan, "start_distributed", lambda **_: pytest.fail("started"))
    config = SimpleNamespace(run=RunConfig(tracking="tensorboard"))
    with pytest.raises(InputError, match="pip install"):
        plan.start_ranks(config, ModelConfig(), 1)  # type: ignore[arg-type]
