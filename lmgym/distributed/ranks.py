"""Ranks: this process's number, starting and stopping, reductions, and errors raised on all ranks.

Plain `python` is one rank: the launcher's variables are set here if they are missing.
"""

import logging
import os
import resource
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist

from lmgym.console import VERBOSE
from lmgym.distributed.deepspeed_config import import_deepspeed
from lmgym.distributed.ports import free_port
from lmgym.distributed.start_deadline import ARRIVE_SECONDS, CONNECT_SECONDS, agent_has_store, deadline
from lmgym.errors import InputError, RunStopped, ServerError, too_many_files

T = TypeVar("T")
FREE_FILES = 64
"""that a rank must be able to open: where its connections find none, torch ends the process or does not say why"""


def rank() -> int:
    """The number of this process among all."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """The number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """The number of processes that the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start_distributed(use_deepspeed: bool, stall_timeout: float = 0.0) -> None:
    """Joins the ranks. Call it before TrainingArguments and before the model, or ZeRO-3 cannot shard at load.

    Ends with exit 70 if ranks are missing after the seconds of `start_deadline`, or `stall_timeout` if that is less and
    not 0. Raises InputError where too few files can be opened.
    """
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    elif "OMP_NUM_THREADS" not in os.environ:
        # more threads than cores made small matrices 5 to 200 times slower
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))))
    if not VERBOSE:
        # users cannot fix either: the Trainer tells only DeepSpeed its accumulation, and torch renames its functions
        logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if world_size() == 1 and not use_deepspeed:
        return
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < psutil.Process().num_fds() + FREE_FILES:
        raise too_many_files()
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    port = str(free_port())
    for name, value in {**defaults, "MASTER_PORT": port}.items():
        os.environ.setdefault(name, value)
    join = partial(_join, "nccl" if on_gpu else "gloo", use_deepspeed)
    if world_size() == 1:
        if not agent_has_store():
            # it meets nobody, and the port of DeepSpeed's launcher is the same for all runs
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        join()
        return
    limit = stall_timeout or float("inf")
    with deadline(rank(), world_size(), min(limit, ARRIVE_SECONDS), min(limit, CONNECT_SECONDS)) as connected:
        join()
        connected()
        all_gather_objects(None)  # NCCL connects at the first collective


def _join(backend: str, use_deepspeed: bool) -> None:
    if use_deepspeed:
        import_deepspeed().init_distributed(dist_backend=backend, auto_mpi_discovery=False)
    else:
        dist.init_process_group(backend)


def stop_distributed() -> None:
    """Leaves the group after a barrier: otherwise a rank that exits first can abort the others."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The elementwise sum over all ranks, in place; with one rank, the tensor itself. Collective."""
    return _reduce(values, dist.ReduceOp.SUM)


def max_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum over all ranks, in place; with one rank, the tensor itself. Collective."""
    return _reduce(values, dist.ReduceOp.MAX)


def _reduce(values: torch.Tensor, operation) -> torch.Tensor:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    if dist.get_backend() == "nccl" and not values.is_cuda:  # NCCL reduces on GPUs only
        shared = values.cuda()
        dist.all_reduce(shared, op=operation)
        return values.copy_(shared)
    dist.all_reduce(values, op=operation)
    return values


def first_non_finite(losses: Sequence[torch.Tensor]) -> int | None:
    """Index of the first of an update's scalar losses that is not finite on any rank; None if all are finite.

    Waits for the device once for all losses. Collective.
    """
    ranks = sum_over_ranks((~torch.isfinite(torch.stack(list(losses)).detach())).double()).tolist()
    return next((index for index, count in enumerate(ranks) if count), None)


def all_gather_objects(value: Any, group: Any = None) -> list[Any]:
    """Every rank's value, in the order of ranks; also a barrier. For small values: they are pickled. Collective."""
    if world_size() == 1 or not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group)
    return values


def raise_on_all_ranks(work: Callable[[], T], group: Any = None) -> T:
    """Returns what `work` returns; an InputError, RunStopped or ServerError of one rank is raised on all of them.
    Collective.
    """
    result: T | None = None
    error: InputError | RunStopped | ServerError | None = None
    try:
        result = work()
    except (InputError, RunStopped, ServerError) as caught:
        error = caught
    if first := next(filter(None, all_gather_objects(error, group)), None):
        if isinstance(first, ServerError):
            first.alone = False  # all have it now: the main rank prints it
        raise first
    return result  # type: ignore[return-value]
