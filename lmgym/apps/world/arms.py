"""The arms of an experiment in the app, run in this process or shared among several.

Design decisions:
- Behaviour is a function of (world, seed, user), and each reply has its own seed, so users can be split among processes
  in any way and merged again (tests/unit/apps/world/test_arms.py).
- Processes are spawned and load the policies themselves, with one thread each: the steps of a small model are too short
  to split between threads.
- Each process counts the users' days that it has completed in shared memory, which the main process shows.
- A GPU, or large models, of which each process would load a copy, use a single process.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lmgym.apps.world.app import deploy
from lmgym.apps.world.behaviour import Behaviour, merge_behaviours
from lmgym.apps.world.policies import load_policies, read_policy
from lmgym.apps.world.streams import Ints
from lmgym.apps.world.world import World
from lmgym.errors import InputError
from lmgym.generation.openai_server import CONCURRENCY
from lmgym.generation.protocol import Generator, Progress, Sampling
from lmgym.report.status_line import StatusLine

LEAST_USER_DAYS = 3000  # per process; fewer are simulated before another process has started
SHOWN_SECONDS = 0.25  # between two looks at the counts
LEAST_USERS = 200  # per part, whose users share batches
MOST_WEIGHT_BYTES = 1 << 28  # of models that several processes load


@dataclass(frozen=True)
class Arm:
    """A policy, by its place in the experiment, and its users, by number."""

    place: int
    users: Ints
    days: int
    seed: int
    sampling: Sampling

    def parts(self, most: int) -> list["Arm"]:
        """This arm split by users into `most` parts or fewer."""
        count = max(1, min(most, len(self.users) // LEAST_USERS))
        return [replace(self, users=users) for users in np.array_split(self.users, count)]


def processes_for(names: Sequence[str], arms: Sequence[Arm]) -> int:
    """The number of processes that is fastest here, at most one per core."""
    import torch

    specs = [read_policy(name) for name in names]
    if any(spec.served for spec in specs):
        return 1  # which sends as many requests at a time as are allowed
    folders = {Path(folder) for spec in specs for folder in (spec.base, spec.scorer) if os.path.isdir(folder)}
    weights = sum(f.stat().st_size for folder in folders for f in folder.glob("*.safetensors"))
    if torch.cuda.is_available() or weights > MOST_WEIGHT_BYTES:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, sum(len(arm.users) * arm.days for arm in arms) // LEAST_USER_DAYS))


def deploy_all(
    names: Sequence[str], world: World, arms: Sequence[Arm], processes: int = 0, concurrency: int = CONCURRENCY
) -> Iterator[tuple[Behaviour, float]]:
    """(behaviour of users, seconds of all processes together) of each arm, in order.

    `processes` 0 is `processes_for`. Raises InputError for policies that do not load, for served ones in several
    processes, and if a process is killed.
    """
    if processes > 1 and any(read_policy(name).served for name in names):
        raise InputError(
            f"--processes {processes} with a served policy; needed: 1, and requests at once: --concurrency"
        )
    processes = processes or processes_for(names, arms)
    days = sum(len(arm.users) * arm.days for arm in arms)
    with StatusLine("simulating", days, "user-days", plain=True) as line:
        line.update(0)
        if processes == 1:
            yield from _deploy_here(names, world, arms, line, concurrency)
        else:
            yield from _deploy_in_processes(names, world, arms, processes, line)


def _deploy_here(
    names: Sequence[str], world: World, arms: Sequence[Arm], line: StatusLine, concurrency: int
) -> Iterator[tuple[Behaviour, float]]:
    policies, before = load_policies(names, world, concurrency), 0
    line.begin(0)
    for number, arm in enumerate(arms, 1):
        began = time.perf_counter()
        line.update(before, figures=[f"policy {number} of {len(arms)}"])
        behaviour = _deploy(policies, world, arm, partial(_count, line, before))
        yield behaviour, time.perf_counter() - began
        before += len(arm.users) * arm.days


def _count(line: StatusLine, before: int, done: int, _: int) -> None:
    line.update(before + done)


def _deploy_in_processes(
    names: Sequence[str], world: World, arms: Sequence[Arm], processes: int, line: StatusLine
) -> Iterator[tuple[Behaviour, float]]:
    context, before = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    parts = [arm.parts(processes) for arm in arms]
    counts = context.RawArray("q", sum(map(len, parts)))
    places = iter(range(len(counts)))
    with ProcessPoolExecutor(processes, context, _start_process, (counts,)) as pool:
        try:  # includes the submits, after which an interrupt would otherwise wait for all futures
            with _delayed_interrupts():
                submitted = [
                    [pool.submit(_deploy_part, names, world, part, next(places)) for part in parts_of_arm]
                    for parts_of_arm in parts
                ]
            for number, futures in enumerate(submitted, 1):
                running = True
                while running:
                    running = bool(wait(futures, SHOWN_SECONDS).not_done)
                    line.update(sum(counts), figures=[f"policy {number} of {len(arms)}"])
                yield _merge(futures)
        except BrokenProcessPool as error:
            raise InputError(
                f"one of {processes} processes that simulate users was killed, or did not start; needed: memory for "
                "the policies in each process, or --processes 1"
            ) from error
        except BaseException:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
            raise


@contextlib.contextmanager
def _delayed_interrupts() -> Iterator[None]:
    """Delays Ctrl-C to the end of the block.

    An interrupted start would leave a process that the pool does not know and never ends, and that keeps a queue open
    for which the others wait.
    """
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield
        return
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def _deploy(policies: Sequence[Generator], world: World, arm: Arm, progress: Progress) -> Behaviour:
    return deploy(policies[arm.place], arm.users, arm.days, arm.seed, world, arm.sampling, progress)


def _merge(futures: Sequence["Future[tuple[Behaviour, float]]"]) -> tuple[Behaviour, float]:
    parts, seconds = zip(*(future.result() for future in futures), strict=True)
    return merge_behaviours(parts), sum(seconds)


_loaded: list[Generator] = []
"""the policies of a spawned process; loaded with its first part, so that errors of loading reach the main process"""
_counts: Any = None
"""the days that users have completed, by part: shared by the processes, of which each writes those of its own parts"""


def _start_process(counts: Any) -> None:
    global _counts
    import torch

    _counts = counts
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the main process prints the message
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _deploy_part(names: Sequence[str], world: World, arm: Arm, place: int) -> tuple[Behaviour, float]:
    def count(done: int, _: int) -> None:
        _counts[place] = done

    if not _loaded:
        _loaded.extend(load_policies(names, world))
    began = time.perf_counter()
    behaviour = _deploy(_loaded, world, arm, count)
    return behaviour, time.perf_counter() - began
