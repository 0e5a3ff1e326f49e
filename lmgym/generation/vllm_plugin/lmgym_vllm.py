"""Weights from a trainer to a vLLM worker: buckets of parameters, broadcast over a process group of their own.

vLLM makes `WeightReceiver` a base class of its worker (`--worker-extension-cls lmgym_vllm.WeightReceiver`); a trainer
calls its methods through `/collective_rpc`, and sends beside the call. The trainer imports this file too: both ends
must agree on the group, the layout of a bucket and the checksum.
"""

import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

SECONDS = 600.0  # that a transfer of a bucket may take
ALIGNMENT = 8  # bytes: a checksum adds up integers of 64 bits
Item = tuple[str, str, Sequence[int]]
"""name, dtype and shape of a parameter"""


def address_for(host: str) -> str:
    """The address by which that host reaches this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as found:
        found.connect((host, 9))  # sends nothing
        return found.getsockname()[0]


def connect(host: str, port: int, rank: int, size: int) -> Any:
    """A gloo group of the trainer, which is rank 0, and all workers; apart from any other group of the process.

    `host` is the trainer's address. Weights pass through the memory of both machines.
    """
    wait, is_host = timedelta(seconds=SECONDS), rank == 0
    store = distributed.TCPStore(host, port, size, is_host, wait)
    options = distributed.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # not the address of this machine's name, which is 127.0.1.1 on many
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=host if is_host else address_for(host))]
    options._timeout = wait
    return distributed.ProcessGroupGloo(store, rank, size, options)


def broadcast(group: Any, buffer: torch.Tensor) -> None:
    """Sends a buffer from rank 0 to all others, into theirs."""
    options = distributed.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    group.broadcast([buffer], options).wait()


def layout(bucket: Sequence[Item]) -> tuple[list[tuple[int, int]], int]:
    """(first and last byte of each parameter in the bucket's buffer, bytes of the buffer)."""
    places, end = [], 0
    for _, dtype, shape in bucket:
        size = torch.Size(shape).numel() * getattr(torch, dtype).itemsize
        places.append((end, end + size))
        end += -(-size // ALIGNMENT) * ALIGNMENT
    return places, end


def checksum(buffer: torch.Tensor) -> list[str]:
    """Of the bytes of a buffer, whose number is a multiple of ALIGNMENT: their sum as 64-bit integers, and the sum
    weighted by place, both modulo 2^64."""
    numbers = buffer.view(torch.int64)
    places = torch.arange(1, 2 * len(numbers), 2)
    return [str(numbers.sum().item()), str((numbers * places).sum().item())]


class WeightReceiver:
    """Methods of a worker, besides vLLM's own."""

    lmgym_group: Any = None

    def lmgym_ready(self) -> dict[str, Any]:
        """Its number among the workers of the server."""
        own: Any = self
        return {"rank": own.rank}

    def lmgym_connect(self, host: str, port: int, first_rank: int, size: int) -> dict[str, Any]:
        """Joins the trainer's group. The workers of one server have consecutive ranks."""
        own: Any = self
        self.lmgym_group = connect(host, port, first_rank + own.rank, size)
        return {"rank": first_rank + own.rank}

    def lmgym_receive(self, buckets: list[list[Item]]) -> dict[str, Any]:
        """Receives buckets in this order and loads them in the place of the weights of those names."""
        own: Any = self
        sums: list[list[str]] = []

        def receive() -> Iterator[tuple[str, torch.Tensor]]:
            for bucket in buckets:
                places, size = layout(bucket)
                buffer = torch.empty(size, dtype=torch.uint8)
                broadcast(self.lmgym_group, buffer)
                sums.append(checksum(buffer))
                for (name, dtype, shape), (begin, end) in zip(bucket, places, strict=True):
                    yield name, buffer[begin:end].view(getattr(torch, dtype)).view(tuple(shape)).to(own.device)

        try:
            own.reload_weights(weights_iterator=receive())
        except BaseException:
            self.lmgym_group = None  # closes the connection: the trainer would wait for the rest to be received
            raise
        pack_tied_heads(own.model_runner.get_model())
        return {"checksums": sums}


def pack_tied_heads(model: torch.nn.Module) -> None:
    """On a CPU vLLM 0.32 multiplies by packed copies of matrices, and a reload does not pack the head of a model anew
    whose head has the weights of the embeddings: it would keep the old ones.
    """
    packed = [module for module in model.modules() if hasattr(module, "cpu_linear")]
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in packed:
        if owners.get(id(module.weight), 0) > 1:
            module.quant_method.process_weights_after_loading(module)  # type: ignore[operator,union-attr]
