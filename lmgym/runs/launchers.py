"""The launchers above a rank: their processes, and the launch as a user typed it. Nothing here imports torch."""

import base64
import contextlib
import json
import os
import shlex
from pathlib import Path
from typing import Any

import psutil

from lmgym.errors import one_line

COMMAND = "LMGYM_LAUNCH"
"""the variable in which `lmgym launch` gives the ranks its own command line"""
LAUNCHERS = {
    *("deepspeed", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    *("torchrun", "torch.distributed.run", "accelerate"),
}
PER_HOST = "deepspeed.launcher.launch"
"""the launcher that deepspeed's own starts on each host"""


def launchers() -> list[psutil.Process]:
    """The launchers above this process, nearest first."""
    parents: list[psutil.Process] = []
    if "LOCAL_RANK" not in os.environ:
        return parents
    for one in psutil.Process().parents():
        if one.pid == 1:
            break
        with contextlib.suppress(psutil.Error):
            # an argument with spaces is a shell's script
            if not LAUNCHERS.intersection(Path(a).name for a in one.cmdline()[:4] if len(a.split()) == 1):
                break
        parents.append(one)
    return parents


def is_alive(process: psutil.Process) -> bool:
    """True if the process still runs: not one that has its id now, and none that has ended and waits for its parent."""
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return False


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
    for one in launchers():
        with contextlib.suppress(psutil.Error):
            commands.append(one.cmdline())
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
