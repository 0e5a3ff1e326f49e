"""The arms of an experiment in the app, one after the other, or shared among processes.

Design decisions:
- What users do is a function of (world, seed, user), and a reply of its own seed: so users are dealt to processes as
  one likes, and their lives are laid side by side again (tests/unit/cli/test_arms.py).
- Processes are started anew and load the policies themselves, each on one thread: a small model's steps are too short
  for two threads to share.
- One process serves a GPU, and large models, of which there would be a copy in each.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmgym.cli.policies import load_policies, read_policy
from lmgym.errors import InputError
from lmgym.generation.protocol import Generator, Sampling
from lmgym.world.app import deploy
from lmgym.world.behaviour import Behaviour, merge_behaviours
from lmgym.world.streams import Ints
from lmgym.world.world import World

WORTH = 3000  # days of users: less is lived before another process has started
TOGETHER = 200  # users who advance together at least
SMALL = 1 << 28  # bytes of weights that each process may load


@dataclass(frozen=True)
class Arm:
    """A policy, by its place among those of the experiment, and the numbers of the users who meet it."""

    place: int
    users: Ints
    days: int
    seed: int
    sampling: Sampling

    def parts(self, most: int) -> list["Arm"]:
        """The same arm, its users dealt to so many at most."""
        count = max(1, min(most, len(self.users) // TOGETHER))
        return [Arm(self.place, u, self.days, self.seed, self.sampling) for u in np.array_split(self.users, count)]


def processes_for(names: Sequence[str], arms: Sequence[Arm]) -> int:
    """How many are worth while here: one a core at most."""
    import torch

    wordings = [read_policy(name) for name in names]
    folders = {Path(f) for w in wordings for f in (w.base, w.scorer) if f and Path(f).is_dir()}
    weights = sum(f.stat().st_size for folder in folders for f in folder.glob("*.safetensors"))
    if torch.cuda.is_available() or weights > SMALL:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, sum(len(arm.users) * arm.days for arm in arms) // WORTH))


def deploy_all(
    names: Sequence[str], world: World, arms: Sequence[Arm], processes: int = 0
) -> Iterator[tuple[Behaviour, float]]:
    """What users did in each arm, and the seconds that it took, of all processes together; in the order of the arms.

    `processes` 0 is as many as are worth while. Raises InputError for policies that cannot be had, and for a process
    that was killed.
    """
    processes = processes or processes_for(names, arms)
    if processes == 1:
        policies = load_policies(names, world)
        for arm in arms:
            began = time.perf_counter()
            yield _deploy(policies, world, arm), time.perf_counter() - began
        return
    context, before = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, context, _begin) as pool:
        try:  # from the first submit on: an interrupt meanwhile would wait for all that was submitted
            with _interrupts_wait():
                parts = [[pool.submit(_live, names, world, part) for part in arm.parts(processes)] for arm in arms]
            for futures in parts:
                yield _joined(futures)
        except BrokenProcessPool as error:
            raise InputError(
                f"one of {processes} processes that lived users' days was killed, or could not start; needed: memory "
                "for the policies in each of them, or --processes 1"
            ) from error
        except BaseException:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()  # nobody waits for what they are at
            raise


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C within is heard behind it. A process whose start it broke off would be known to nobody, so that nobody
    ends it, and would keep the queue open that the end of the others waits for.
    """
    if threading.current_thread() is not threading.main_thread():  # no other hears signals
        yield
        return
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _deploy(policies: Sequence[Generator], world: World, arm: Arm) -> Behaviour:
    return deploy(policies[arm.place], arm.users, arm.days, arm.seed, world, arm.sampling)


def _joined(futures: Sequence["Future[tuple[Behaviour, float]]"]) -> tuple[Behaviour, float]:
    parts, seconds = zip(*(future.result() for future in futures), strict=True)
    return merge_behaviours(parts), sum(seconds)


_loaded: list[Generator] = []
"""the policies of a process that was started here, from its first arm on: what cannot be loaded is the arm's error"""


def _begin() -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first process says what there is to say
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _live(names: Sequence[str], world: World, arm: Arm) -> tuple[Behaviour, float]:
    if not _loaded:
        _loaded.extend(load_policies(names, world))
    began = time.perf_counter()
    behaviour = _deploy(_loaded, world, arm)
    return behaviour, time.perf_counter() - began
