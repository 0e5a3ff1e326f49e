"""Runs that are killed, signalled and begun again, and what they left."""

import contextlib
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from forking import Forked
from launching import Launched, flags, launch, read_lines, start
from patience import PATIENCE

SCRIPT = Path(__file__).with_name("noisy_experiment.py")
ROOT = Path(__file__).parents[2]
# 23 pairs in updates of 4: six an epoch, the last of 3; checkpoints in mid-epoch (2, 4, 8, 10) and at an epoch's end
UPDATES, EPOCH = 15, 6
TRAIN = {
    "max_length": 256, "global_batch": 4, "micro_batch": 1, "max_updates": UPDATES, "learning_rate": 1e-3,
    "log_updates": 3, "eval_updates": 5, "save_updates": 2, "precision": "fp32", "tracking": "none",
}  # fmt: skip
ENGINES = {
    "plain": ("fork", None), "forked_ddp": ("forks", None), "forked_zero2": ("forks", "zero2.json"),
    "ddp": ("torchrun", None), "zero1": ("deepspeed", "zero1.json"), "zero2": ("deepspeed", "zero2.json"),
    "zero3": ("deepspeed", "zero3.json"),
}  # fmt: skip
NO_FIGURES = ("step", "epoch", "time", "non_finite")
TIMES = (
    "time", "time/train", "time/evaluate", "train/items_per_second", "train/tokens_per_second", "run/seconds",
)  # fmt: skip


def command(engine: str, output: Path, model: Path, pairs: Path, held_out: Path, ranks: int = 2, **changes) -> list:
    """The command of a user to train under an engine; the same command again resumes."""
    kind, config = ENGINES[engine]
    values = {"model": model, "dataset": pairs, "eval_dataset": held_out, "output": output, **TRAIN, **changes}
    if config:
        values["deepspeed"] = ROOT / "configs" / config
    return launch(kind, *flags(**values), script=SCRIPT, ranks=ranks)


def workers(launched: Launched, script: Path = SCRIPT) -> dict[int, int]:
    """Process ids by rank of what a launcher has started (0: the process itself under plain Python)."""
    if isinstance(launched.process, Forked):
        return launched.process.ranks()
    found = {}
    for process in [psutil.Process(launched.process.pid), *psutil.Process(launched.process.pid).children(True)]:
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            # data workers are forks of a rank and look the same
            if len(words) > 1 and any(word.endswith(script.name) for word in words[1:3]):
                found.setdefault(int(process.environ().get("RANK", "0")), process.pid)
    return found


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE, launched: Launched | None = None) -> Any:
    """Polls until something is there. Raises TimeoutError, or AssertionError where the run ended without it."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        if launched is not None and launched.process.poll() is not None:
            if found := what():
                return found
            launched.stderr.seek(0)
            raise AssertionError(f"the run ended first: {launched.stderr.read()[-3000:]}")
        time.sleep(0.02)
    raise TimeoutError(what)


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a run's folder."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").glob("step-*"))


def begin_and_wait(words: list, folder: Path, step: int, **environment: str) -> Launched:
    """Starts a run and returns once it has the checkpoint of a step."""
    launched = start(words, **environment)
    wait_for(lambda: step in steps(folder) or (steps(folder) or [0])[-1] > step, launched=launched)
    return launched


def kill_rank(launched: Launched, rank: int) -> None:
    """kill -9."""
    os.kill(workers(launched)[rank], signal.SIGKILL)


def newest(folder: Path) -> Path:
    """The last checkpoint of a run."""
    return folder / "checkpoints" / f"step-{steps(folder)[-1]:08d}"


def reseal(checkpoint: Path) -> None:
    """Rewrites a checkpoint's manifest to agree with its files, like an attacker who has replaced one."""
    from lmgym.runs.checkpoint_files import file_hash, manifest_hash

    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for file in manifest["files"]:
        path = checkpoint / file["path"]
        file |= {"size": path.stat().st_size, "sha256": file_hash(path)}
    manifest["sha256"] = manifest_hash(manifest)
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def lines_once(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics, of which none has a figure of a step that another has."""
    lines = read_lines(path)
    named = [(line["step"], name) for line in lines for name in line if name not in NO_FIGURES]
    assert len(named) == len(set(named)), f"twice: {sorted({one for one in named if named.count(one) > 1})}"
    return lines


def digest(folder: Path) -> str:
    """sha256 of the best and the last weights in the order of their names."""
    from safetensors.torch import load_file

    total = hashlib.sha256()
    for path in (folder / "model", *([folder / "last"] if (folder / "last").exists() else [])):
        total.update(path.name.encode())
        for name, value in sorted(load_file(path / "model.safetensors").items()):
            total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()


def measured(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics but for their times, and the evaluation and scores."""
    lines = [{k: v for k, v in line.items() if k not in TIMES} for line in lines_once(folder / "metrics.jsonl")]
    return [*lines, json.loads((folder / "evaluation.json").read_text()), *read_lines(folder / "scores.jsonl")]


def said_by_ranks(stderr: str) -> str:
    """Without the traceback by which torchrun tells that a rank has failed."""
    return re.sub(r"Traceback \(most(?:(?!Traceback).)*ChildFailedError", "", stderr, flags=re.DOTALL)


def outcome(folder: Path) -> tuple[str, int | None]:
    """The outcome that a run has recorded."""
    record = json.loads((folder / "run.json").read_text())
    return record["outcome"], record["exit_code"]
