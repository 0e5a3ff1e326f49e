"""The launchers above a rank: their processes, and the launch as a user typed it. Nothing here imports torch."""

import base64
import contextlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

from lmgym.errors import one_line

COMMAND = "LMGYM_LAUNCH"
"""the variable in which `lmgym launch` gives the ranks its own command line"""
LAUNCHERS = {
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("torchrun", "torch.distributed.run", "accelerate"),
}
PER_HOST = "deepspeed.launcher.launch"
"""the launcher that deepspeed's own starts on each host"""


def launchers() -> list[tuple[int, str]]:
    """The launchers above this process, nearest first: process ids and start times (ids may be reused)."""
    parents: list[tuple[int, str]] = []
    if "LOCAL_RANK" not in os.environ:
        return parents
    pid = os.getppid()
    while pid > 1 and (fields := stat_fields(pid)):
        with contextlib.suppress(OSError):
            # an argument with spaces is a shell's script
            if not LAUNCHERS.intersection(Path(a).name for a in _words(pid)[:4] if len(a.split()) == 1):
                break
        parents.append((pid, fields[19]))
        pid = int(fields[1])
    return parents


def is_alive(pid: int, started: str) -> bool:
    """True if a process that started then still runs."""
    fields = stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX" and fields[19] == started


def local_ranks() -> int:
    """The number of ranks on this machine, as torchrun (LOCAL_WORLD_SIZE) or deepspeed (LOCAL_SIZE) says it."""
    names = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "WORLD_SIZE")
    return int(next((os.environ[name] for name in names if name in os.environ), 1))


def describe_launch() -> dict[str, Any]:
    """The launch of this rank: `command`, the words of the outermost launcher on this machine; `hosts`, the number of
    ranks on each, where deepspeed's launcher knows it; `slurm_job`. Fields that are not known are absent.
    """
    found: dict[str, Any] = {}
    if typed := os.environ.get(COMMAND):
        with contextlib.suppress(ValueError):
            found["command"] = shlex.split(typed)
    commands = []
    for pid, _ in launchers():
        with contextlib.suppress(OSError):
            commands.append(_words(pid))
    if commands:
        found.setdefault("command", commands[-1])
        for words in commands:
            found |= _hosts(words)
    if commands and (job := os.environ.get("SLURM_JOB_ID")):
        found["slurm_job"] = one_line(job, 20)
    return found


def _hosts(words: list[str]) -> dict[str, dict[str, int]]:
    flag = "--world_info="
    for word in words:
        if word.startswith(flag):
            with contextlib.suppress(ValueError, AttributeError, TypeError):
                world = json.loads(base64.urlsafe_b64decode(word.removeprefix(flag)))
                return {"hosts": {str(host): len(places) for host, places in world.items()}}
    return {}


def _words(pid: int) -> list[str]:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]


def stat_fields(pid: int) -> list[str]:
    """Linux's status fields of a process, from its state on (proc(5)); empty if it does not exist."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
