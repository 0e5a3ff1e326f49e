"""Weights from a trainer to vLLM servers: buckets over a process group of their own (lmgym/generation/vllm_plugin).

Rank 0 sends. Every rank walks all buckets, because under ZeRO-3 each has a part of every weight.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

import torch

from lmgym.distributed.ports import free_port
from lmgym.distributed.ranks import rank
from lmgym.errors import InputError, ServerError
from lmgym.generation.model_server import is_loopback
from lmgym.generation.vllm_plugin.lmgym_vllm import (
    SECONDS,
    Item,
    address_for,
    broadcast,
    checksum,
    connect,
    layout,
)
from lmgym.models.parameters import gathered

LAST_WORDS = 5.0  # seconds in which a server whose connection broke may say why
Call = Callable[..., list[Any]]
"""calls a method of a server's workers: (its name, seconds to wait, **values) -> what each worker returns"""
T = TypeVar("T")


@final
class WeightSender:
    """The group of rank 0 and the workers of all servers. Made on rank 0 alone; its methods raise ServerError."""

    def __init__(self, servers: Sequence[tuple[str, Call]], workers: int) -> None:
        """`servers` are addresses with their calls; each has so many workers."""
        self.servers = servers
        self._pool = ThreadPoolExecutor(len(servers), thread_name_prefix="weights")
        port, size = free_port(), 1 + workers * len(servers)
        addresses = [address_for(urlsplit(url).hostname or "") for url, _ in servers]
        host = next((address for address in addresses if not is_loopback(address)), addresses[0])
        joining = [
            self._pool.submit(
                call, "lmgym_connect", SECONDS, host=host, port=port, first_rank=1 + number * workers, size=size
            )
            for number, (_, call) in enumerate(servers)
        ]
        self.group = sending(joining, lambda: connect(host, port, 0, size))

    def send(self, buckets: Sequence[Sequence[Item]], buffers: Iterator[torch.Tensor]) -> None:
        """Sends buffers, which follow the buckets' layout. Raises InputError if a server received other bytes."""
        calls = [
            self._pool.submit(call, "lmgym_receive", SECONDS + 60, buckets=[list(bucket) for bucket in buckets])
            for _, call in self.servers
        ]
        sums: list[list[str]] = []

        def send_all() -> None:
            failure: RuntimeError | None = None
            for buffer in buffers:  # to the end: other ranks gather all of them
                sums.append(checksum(buffer))
                try:
                    if failure is None:
                        broadcast(self.group, buffer)
                except RuntimeError as error:
                    failure = error
            if failure is not None:
                raise failure

        sending(calls, send_all)
        for (url, _), answered in zip(self.servers, calls, strict=True):
            for worker, found in enumerate(answered.result()):
                if found["checksums"] != sums:
                    wrong = sum(a != b for a, b in zip(found["checksums"], sums, strict=False))
                    raise InputError(
                        f"worker {worker} of {url} received other weights than were sent: {wrong} of {len(sums)} "
                        f"buckets differ, {len(found['checksums'])} arrived; the sync failed"
                    )

    def close(self) -> None:
        """Ends the threads. Calls that wait for a dead server end by their own limits."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def sending(calls: Sequence["Future[list[Any]]"], work: Callable[[], T]) -> T:
    """The result of `work`, once all calls beside it have ended too. The error of a call goes before that of the group,
    which says less."""
    try:
        result = work()
    except RuntimeError as error:  # of torch.distributed
        wait(calls, LAST_WORDS, FIRST_EXCEPTION)
        for call in calls:
            if call.done() and (cause := call.exception()):
                raise cause from error
        raise ServerError(f"the transfer of weights broke off: {error}") from error
    for call in calls:
        call.result()
    return result


def pack(bucket: Sequence[Item], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The bytes of weights in a bucket's layout, on the CPU."""
    places, size = layout(bucket)
    buffer = torch.zeros(size, dtype=torch.uint8)
    for (_, dtype, _), (begin, end), weight in zip(bucket, places, weights, strict=True):
        buffer[begin:end] = weight.detach().to("cpu", getattr(torch, dtype)).flatten().view(torch.uint8)
    return buffer


def buffers_of(buckets: Sequence[Sequence[Item]], weights: Sequence[Sequence[torch.Tensor]]) -> Iterator[torch.Tensor]:
    """The buffers of all buckets, gathered one at a time; empty ones on other ranks. Collective under ZeRO-3."""
    for bucket, own in zip(buckets, weights, strict=True):
        with gathered(own):
            buffer = pack(bucket, own) if rank() == 0 else torch.empty(0)
        yield buffer
