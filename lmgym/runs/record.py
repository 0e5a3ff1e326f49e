"""The record of a run (run.json): command, config, commit, versions; secrets are redacted."""

import os
import platform
import resource
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lmgym.aids import aid
from lmgym.masking import looks_secret, masked
from lmgym.runs.launchers import describe_launch, local_ranks
from lmgym.runs.node_report import GIT

LIBRARIES = ("torch", "transformers", "deepspeed", "accelerate", "datasets", "peft")
REDACTED = "(redacted)"


def describe_run(name: str, config: dict[str, Any], seed: int, data_fingerprint: str | None) -> dict[str, Any]:
    """The first record of a run: all that is needed to know later what was run."""
    return {
        "name": name,
        "outcome": "running",
        "exit_code": None,
        "started": timestamp(),
        "command": shlex.join(_redact_command(sys.orig_argv)),
        "launch": _launch(),
        "config": config,
        "seed": seed,
        "data_fingerprint": data_fingerprint,
        "git": _git(),
        "versions": versions(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        **_hardware(),
    }


@aid("the record of the launch", dict)
def _launch() -> dict[str, Any]:
    """The launch of a launcher's ranks, from which `lmgym runs` makes the command that resumes them."""
    found = describe_launch()
    return found | {"command": shlex.join(_redact_command(found["command"]))} if "command" in found else found


@aid("the record of the hardware", dict)
def _hardware() -> dict[str, Any]:
    """Ranks, the cores of this machine, and GPUs: one of each rank, with the names of those of this machine."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    local_world_size = local_ranks()
    torch = sys.modules.get("torch")  # a run that uses a GPU has imported it
    names = []
    if torch is not None and torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(min(local_world_size, torch.cuda.device_count()))]
    return {
        "world_size": world_size,
        "local_world_size": local_world_size,
        "cores": os.cpu_count(),
        "gpus": world_size if names else 0,
        "gpu_names": names,
    }


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended, since it began."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


@aid("the record of the peak memory", dict)
def peak_memory() -> dict[str, float]:
    """The most memory that this process has held, GiB: its own, and on its GPU that of torch's tensors."""
    unit = 1 if sys.platform == "darwin" else 1024
    found = {"peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        found["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return {name: round(value, 3) for name, value in found.items()}


def timestamp() -> str:
    """The current time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@aid("the record of versions", dict)
def versions() -> dict[str, str | None]:
    """Versions of Python and of the libraries on which a result may depend."""
    from importlib import metadata

    result: dict[str, str | None] = {"python": platform.python_version()} | dict.fromkeys(LIBRARIES)
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            result[library] = metadata.version(library)
    return result


@aid("the record of the commit")
def _git() -> dict[str, Any] | None:
    """Commit of the repository of this code, or else of the current folder. `dirty` includes untracked files, because
    an experiment that was never added is in no commit.
    """
    for folder in (Path(__file__).parent, Path.cwd()):
        with suppress(OSError, subprocess.SubprocessError):
            commit = _run_git(folder, "rev-parse", "--verify", "HEAD")
            return {"commit": commit, "dirty": bool(_run_git(folder, "status", "--porcelain"))}
    return None


def _run_git(folder: Path, *arguments: str) -> str:
    done = subprocess.run([*GIT, *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def redact(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without passwords in addresses, and with REDACTED for those whose name looks like a secret's.

    Numbers, booleans and None stay.
    """
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            kept[name] = redact(value)
        else:
            harmless = value is None or isinstance(value, bool | int | float)
            shown = masked(value) if isinstance(value, str) else value
            kept[name] = shown if harmless or not looks_secret(str(name)) else REDACTED
    return kept


def _redact_command(words: Sequence[str]) -> list[str]:
    """A command line with REDACTED for the values of flags whose name looks like a secret's (--a b and --a=b)."""
    kept: list[str] = []
    after_secret = False
    for word in words:
        flag, equals, _ = word.partition("=")
        secret = flag.startswith("--") and looks_secret(flag)
        is_value = after_secret and not word.startswith("--")
        kept.append(REDACTED if is_value else f"{flag}={REDACTED}" if secret and equals else masked(word))
        after_secret = secret and not equals
    return kept
