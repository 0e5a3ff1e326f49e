"""Launches as a user types them: a command, its output, and what it left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from forking import Forked
from patience import PATIENCE

from lmgym.distributed.ports import free_port

ROOT = Path(__file__).parents[2]
EXPERIMENT = ROOT / "reward_models/experiments/hh_pairwise.py"
BIN = Path(sys.executable).parent
# a launch in a launch's environment, with somebody's keys, or on the device of the process that tests (which says so in
# DS_ACCELERATOR once it has imported DeepSpeed) would be another launch
FOREIGN = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "WANDB_", "HF_TOKEN",
    "DS_ACCELERATOR",
)  # fmt: skip
FORKED = "forked"
# a process's environment in which there is a GPU, that is pretended
PRETENDED = {"PRETENDED_GPU": "1", "PYTHONPATH": str(ROOT / "tests/pretended")}


@dataclass
class Launched:
    """A command under way; its output goes to files, so that two at once cannot fill a pipe."""

    process: subprocess.Popen | Forked
    stdout: IO[str]
    stderr: IO[str]


def run(
    command: Sequence[object], cwd: Path = ROOT, seconds: float = PATIENCE, stdin: IO[str] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Runs a command to its end. Raises TimeoutExpired, with all its processes killed, after `seconds`."""
    return finish(start(command, cwd, stdin, **environment), seconds)


def start(command: Sequence[object], cwd: Path = ROOT, stdin: IO[str] | None = None, **environment: str) -> Launched:
    """Starts a command in a process group of its own, one thread a process, off the hub. `stdin`: of a fork."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    ours = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    env = {**inherited, **ours, **environment}
    stdout, stderr = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115  `finish` closes them
    words = [str(word) for word in command]
    if words[0] == FORKED:
        ranks, port, *words = words[1:]
        return Launched(
            Forked(words, int(ranks), cwd, env | {"MASTER_PORT": port}, stdout, stderr, stdin), stdout, stderr
        )
    process = subprocess.Popen(words, cwd=cwd, env=env, stdout=stdout, stderr=stderr, text=True, start_new_session=True)
    return Launched(process, stdout, stderr)


def finish(launched: Launched, seconds: float = PATIENCE) -> subprocess.CompletedProcess[str]:
    """Waits for a command and reads its output. What it left running is killed."""
    try:
        launched.process.wait(seconds)
    finally:
        # deepspeed's runner leaves its workers alive when it alone is signalled: the whole group goes
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launched.process.pid, signal.SIGKILL)
        launched.process.wait()
        texts = []
        for file in (launched.stdout, launched.stderr):
            file.seek(0)
            texts.append(file.read())
            file.close()
    return subprocess.CompletedProcess(launched.process.args, launched.process.returncode, *texts)


def launch(kind: str, *arguments: object, ranks: int = 2, script: Path = EXPERIMENT) -> list[object]:
    """The command that runs a script under "python", "torchrun" or "deepspeed"; a port of its own each time.

    Where the launcher is not what is tested, "fork" is a process like that of "python", and "forks" are ranks like
    those of a launcher, without the seconds in which each imports its libraries.
    """
    if kind == "python":
        return [BIN / "python", script, *arguments]
    if kind in ("fork", "forks"):
        return [FORKED, ranks if kind == "forks" else 0, free_port(), script, *arguments]
    count = {"torchrun": "--nproc_per_node", "deepspeed": "--num_gpus"}[kind]
    return [BIN / kind, count, ranks, "--master_port", free_port(), script, *arguments]


@contextlib.contextmanager
def scripts_are_forked() -> Iterator[None]:
    """Within it a script, or a module of this repository by `-m`, for which code asks `subprocess.run` is forked."""

    def fork(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        first, *words = command[1:]
        if first == "-m":
            first, *words = str(ROOT / words[0].replace(".", "/")) + ".py", *words[1:]
        return run(launch("fork", *words, script=Path(first)))

    started, subprocess.run = subprocess.run, fork  # type: ignore[assignment]
    try:
        yield
    finally:
        subprocess.run = started


def flags(**values: object) -> list[object]:
    """`--name value` for every value."""
    return [word for name, value in values.items() for word in (f"--{name}", value)]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_metrics(folder: Path) -> dict[str, dict[int, float]]:
    """Every metric of a run by step."""
    metrics: dict[str, dict[int, float]] = {}
    for line in read_lines(folder / "metrics.jsonl"):
        for name, value in line.items():
            metrics.setdefault(name, {})[line["step"]] = value
    return metrics


def assert_metrics_are_known(folder: Path) -> None:
    """Every metric that a run of a stage has logged is in the table, as one of that stage."""
    from lmgym.report.known_metrics import metric_of
    from lmgym.report.run_files import RunFiles

    run = RunFiles(folder)
    assert run.stage, folder
    unknown = [name for name in run.metric_names if not metric_of(name, run.stage)]
    assert unknown == [], f"{unknown} of {run.stage} are not in the table of metrics: lmgym/report"


def read_weights(folder: Path) -> Mapping[str, Any]:
    """The weights of a run's model."""
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def largest_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The largest difference between two sets of weights of the same names."""
    assert a.keys() == b.keys()
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


def words(text: str) -> str:
    """Text as one line, since tables and long sentences are broken to the terminal's width."""
    return " ".join(text.split())
