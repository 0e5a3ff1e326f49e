"""Ranks: which one this is, how they start and stop, and what they sum, share and raise together.

Plain `python` is one rank: the launcher's variables are set here where they are absent.
"""

import logging
import os
import socket
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from lmgym.distributed.deepspeed_config import import_deepspeed
from lmgym.errors import InputError, RunStopped

T = TypeVar("T")


def rank() -> int:
    """This process among all."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start_distributed(use_deepspeed: bool) -> None:
    """Joins the ranks. Called before TrainingArguments and before the model, else ZeRO-3 cannot shard at load."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    elif "OMP_NUM_THREADS" not in os.environ:
        # more threads than cores made small matrices 5 to 200 times slower
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", world_size()))))
    # neither is a user's to mend: the Trainer hands its accumulation to DeepSpeed alone, torch renames its functions
    logging.getLogger("accelerate.accelerator").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    if world_size() == 1 and not use_deepspeed:
        return
    _set_launcher_variables()
    if not use_deepspeed:
        dist.init_process_group("nccl" if on_gpu else "gloo")
        return
    deepspeed = import_deepspeed()
    deepspeed.init_distributed(dist_backend="nccl" if on_gpu else "gloo", auto_mpi_discovery=False)


def stop_distributed() -> None:
    """Leaves together: without the barrier a rank that exits first can abort the others."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def free_port() -> int:
    """A port that nobody listens on now: launchers default to 29500, which two runs on a machine would share."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _set_launcher_variables() -> None:
    defaults = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**defaults, "MASTER_PORT": str(free_port())}.items():
        os.environ.setdefault(name, value)


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The elementwise sum of a tensor over all ranks, in place (itself where there is one)."""
    return _reduced(values, dist.ReduceOp.SUM)


def max_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The elementwise maximum of a tensor over all ranks, in place (itself where there is one)."""
    return _reduced(values, dist.ReduceOp.MAX)


def _reduced(values: torch.Tensor, operation) -> torch.Tensor:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return values
    if dist.get_backend() == "nccl" and not values.is_cuda:  # which reduces on GPUs alone
        shared = values.cuda()
        dist.all_reduce(shared, op=operation)
        return values.copy_(shared)
    dist.all_reduce(values, op=operation)
    return values


def first_non_finite(losses: Sequence[torch.Tensor]) -> int | None:
    """Which of an update's losses, a scalar each, is the first that is not finite on any rank; None where all are.

    The one wait for the device that an update's losses cost. Collective.
    """
    wrong = sum_over_ranks((~torch.isfinite(torch.stack(list(losses)).detach())).double()).tolist()
    return next((number for number, ranks in enumerate(wrong) if ranks), None)


def all_gather_objects(value: Any) -> list[Any]:
    """What every rank has to say, in the order of ranks; also a place where all meet. Small things only: pickled."""
    if world_size() == 1 or not dist.is_initialized():
        return [value]
    said: list[Any] = [None] * world_size()
    dist.all_gather_object(said, value)
    return said


def raise_on_all_ranks(work: Callable[[], T]) -> T:
    """What `work` gives; an InputError or RunStopped of one rank is raised on all, so that it is told. Collective."""
    found: T | None = None
    own: InputError | RunStopped | None = None
    try:
        found = work()
    except (InputError, RunStopped) as error:
        own = error
    if refusal := next(filter(None, all_gather_objects(own)), None):
        raise refusal
    return found  # type: ignore[return-value]
