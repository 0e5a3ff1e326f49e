"""A run that is killed and resumed is one run on wandb, over loopback, and in trackio: no step twice, none lost."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launch, run
from patience import PATIENCE
from wandb_stub import KEY, TrackedRun, WandbServer, serving

# FOLDER TRACKING UPDATES-BEFORE-IT-IS-RESUMED LAST END; as a trainer logs: two lines at some steps, final figures
LIFE = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from lmgym.config import SharingConfig
from lmgym.runs.resuming import Start
from lmgym.runs.run import Run

folder, tracking, resumed, last, end = sys.argv[1:6]
first, last, checkpoint = int(resumed) + 1, int(last), SimpleNamespace(step=int(resumed))
start = Start("a" * 32, checkpoint if first else None, folder=Path(folder))
sharing = SharingConfig(**dict(pair.split("=") for pair in sys.argv[6:]))
run = Run.start(folder, {"seed": 1}, 0, tracking, name="named", start=start, sharing=sharing)
for step in range(first, last + 1):
    run.log(step, {"loss": step / 2})
    if step % 4 == 0:
        run.log(step, {"eval/accuracy": step / 100})
if end == "killed":
    os.kill(os.getpid(), 9)
if end == "finished":
    run.log(last, {"run/seconds": 3.0})
run.finish(end)
"""


def live(folder: Path, *arguments: object, **environment: str) -> str:
    """A process that logs as a run; what it says. One that is killed takes wandb's service with it."""
    script = folder.with_name(f"{folder.name}.py")
    script.write_text(LIFE)
    done = run(launch("fork", folder, *arguments, script=script), **environment)
    said = done.stdout + done.stderr
    assert done.returncode == (-signal.SIGKILL if "killed" in arguments else 0), said
    assert KEY not in said
    return said


def lines(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """The figures of the run's own file, which a tracker should have too."""
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(line.pop("step"), {k: v for k, v in line.items() if k not in ("time", "non_finite")}) for line in found]


def history(run: TrackedRun) -> list[tuple[int, dict[str, float]]]:
    return [(line["step"], {k: v for k, v in line.items() if k[0] != "_" and k != "step"}) for line in run.history]


def with_final_joined(found: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    """The final figures in the line before them, as trackers have them."""
    assert "run/seconds" in found[-1][1]
    return [*found[:-2], (found[-2][0], found[-2][1] | found[-1][1])]


def only(server: WandbServer) -> TrackedRun:
    assert list(server.runs) == [f"me/lmgym/{'a' * 32}"], "one run"
    return next(iter(server.runs.values()))


def test_a_run_that_was_killed_and_interrupted_is_one_run_with_every_step_once(tmp_path: Path) -> None:
    with serving() as server:
        live(tmp_path, "wandb", -1, 10, "killed", **server.environment)
        assert len(only(server).history) < 14, "the kill took lines"
        live(tmp_path, "wandb", 4, 14, "interrupted", **server.environment)
        assert history(only(server)) == lines(tmp_path)
        live(tmp_path, "wandb", 8, 20, "finished", **server.environment)
        assert history(only(server)) == with_final_joined(lines(tmp_path))
    record = json.loads((tmp_path / "run.json").read_text())["trackers"]
    assert record["wandb"]["id"] == record["wandb"]["url"].rpartition("/")[2] == "a" * 32


@pytest.mark.slow
def test_lines_that_had_been_sent_before_a_kill_are_not_sent_again(tmp_path: Path) -> None:
    with serving() as server:
        live(tmp_path, "none", -1, 10, "killed")
        sent = server.run("me", "lmgym", "a" * 32)
        sent.history = [{"_step": i, "step": s, **line} for i, (s, line) in enumerate(lines(tmp_path)[:9])]
        before = list(sent.history)
        live(tmp_path, "wandb", 4, 12, "interrupted", **server.environment)
        assert sent.history[:9] == before
        assert history(sent) == lines(tmp_path)


@pytest.mark.slow
def test_flags_name_the_run_and_win_over_the_environment(tmp_path: Path) -> None:
    names = ("run_name=mine", "wandb_project=ours", "wandb_entity=team", "wandb_group=g", "wandb_tags=a, b")
    elsewhere = {
        "WANDB_NAME": "n",
        "WANDB_PROJECT": "p",
        "WANDB_ENTITY": "e",
        "WANDB_RUN_GROUP": "r",
        "WANDB_TAGS": "t",
    }
    with serving() as server:
        live(tmp_path / "flags", "wandb", -1, 1, "finished", *names, **server.environment, **elsewhere)
        live(tmp_path / "names", "wandb", -1, 1, "finished", **server.environment, **elsewhere)
        found = {path: run.settings[0] for path, run in server.runs.items()}
    flags, environment = found[f"team/ours/{'a' * 32}"], found[f"e/p/{'a' * 32}"]
    assert (flags["displayName"], flags["groupName"], flags["tags"]) == ("mine", "g", ["a", "b"])
    assert (environment["displayName"], environment["groupName"], environment["tags"]) == ("n", "r", ["t"])


@pytest.mark.slow
def test_offline_runs_that_are_synced_in_their_order_are_one_run_too(tmp_path: Path) -> None:
    live(tmp_path, "offline", -1, 10, "interrupted")
    live(tmp_path, "offline", 4, 12, "finished")
    with serving() as server:
        for record in sorted(tmp_path.glob("wandb/offline-run-*"), key=lambda path: path.name):
            command = [Path(sys.executable).parent / "wandb", "sync", record]
            subprocess.run(command, env=os.environ | server.environment, check=True, timeout=PATIENCE)
        assert history(only(server)) == with_final_joined(lines(tmp_path))


@pytest.mark.slow
def test_in_trackio_it_is_one_run_too(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="trackio is an extra: pip install 'lmgym[trackio]'")
    place = {"TRACKIO_DIR": str(tmp_path / "trackio")}
    live(tmp_path / "run", "trackio", -1, 10, "killed", **place)
    live(tmp_path / "run", "trackio", 4, 14, "interrupted", **place)
    said = live(tmp_path / "run", "trackio", 8, 20, "finished", **place)
    assert "tracking: trackio show --project lmgym" in said
    assert "Trackio project initialized" not in said
    read = "import json; from trackio.sqlite_storage import SQLiteStorage as S; runs = S.get_runs('lmgym');"
    read += "print(json.dumps({r: S.get_logs('lmgym', r) for r in runs}))"
    done = subprocess.run([sys.executable, "-c", read], env=os.environ | place, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == ["named-aaaaaaaa"]
    logs = [(log["step"], log["loss"]) for log in found["named-aaaaaaaa"] if "loss" in log]
    assert logs == [(step, step / 2) for step in range(21)]
