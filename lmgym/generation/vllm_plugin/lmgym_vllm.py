"""Weights from a trainer to a vLLM worker: buckets of parameters, broadcast over a process group of their own.

vLLM makes `WeightReceiver` a base class of its worker (`--worker-extension-cls lmgym_vllm.WeightReceiver`); a trainer
calls its methods through `/collective_rpc`, and sends beside the call. The trainer imports this file too: both ends
must agree on the group, the layout of a bucket, the checksum, and the vector that is sent through layers.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypedDict

import torch
from torch import distributed

SECONDS = 600.0  # that a transfer of a bucket may take
ALIGNMENT = 8  # bytes: a checksum adds up integers of 64 bits
FAR = 1e9  # the greatest distance of a layer: JSON has no infinity
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


class LayerSample(TypedDict):
    """What a trainer's layer makes of `probe_vector`, or a weight that is no linear layer's: some runs of numbers."""

    name: str
    inputs: int
    """of a linear layer; 0: `runs` are of the weight itself, in the dtype that is served"""
    is_head: bool
    """it makes the logits"""
    runs: list[list[float]]
    """consecutive outputs, from several places"""


def probe_vector(size: int) -> torch.Tensor:
    """A fixed vector [size] in fp32, whose entries are within -1 and 1 and have no period."""
    return torch.cos(torch.arange(1, size + 1, dtype=torch.float64).square()).float()


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

    def lmgym_compare(self, samples: list[LayerSample], newest_adapter: bool) -> dict[str, float]:
        """By name, how far the layers of this worker are from samples of a trainer's: see `compare_layers`.

        With `newest_adapter` the layers have the adapter that was loaded last. Nothing else may be computed.
        """
        own: Any = self
        if newest_adapter:
            number = max(own.model_runner.lora_manager.list_adapters())
            activate(own.model_runner.lora_manager, number)
        return compare_layers(own.model_runner.get_model(), samples, own.device)


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


def activate(lora_manager: Any, number: int) -> None:
    """Makes a loaded adapter that of the next token."""
    from vllm.lora.layers import LoRAMapping
    from vllm.lora.request import LoRARequest

    request = LoRARequest(f"adapter {number}", number, "loaded already")
    lora_manager.set_active_adapters({request}, LoRAMapping((number,), (number,), is_prefill=True))


@torch.inference_mode()
def compare_layers(model: Any, samples: Sequence[LayerSample], device: Any) -> dict[str, float]:
    """By name, the largest distance of a sample's runs from what this model has in their places, over their root mean
    square; FAR at most, and without such a place. A run that another worker has is far away too: the least of all
    workers counts.

    Fused layers have the outputs of several: a run is looked for in all outputs of layers with as many inputs whose
    names have the same numbers, or the first of them. Outputs are those of each layer's own forward, whatever copies of
    weights it multiplies by.
    """
    outputs = layer_outputs(model, samples, device)
    weights: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for name, weight in model.named_parameters():
        weights.setdefault(numbers_in(name), []).append(weight.detach().flatten())
    found = {}
    for sample in samples:
        numbers, inputs = numbers_in(sample["name"]), sample["inputs"]
        runs = torch.tensor(sample["runs"], device=device)
        places = []
        for length in range(min(1, len(numbers)), len(numbers) + 1):
            begin = numbers[:length]
            places += outputs.get((begin, inputs), []) if inputs else weights.get(begin, [])
        scale = runs.square().mean().sqrt().clamp(min=1e-30)
        nearest = (_distance(run, places, exact=not inputs) for run in runs)
        found[sample["name"]] = min(FAR, float(max(nearest) / scale))
    return found


def _distance(run: torch.Tensor, places: Sequence[torch.Tensor], exact: bool) -> float:
    """The largest difference of a run's numbers from those of the most similar place; `exact` ones are equal or far."""
    least = float("inf")
    for place in places:
        if len(place) < len(run):
            continue
        if exact:
            value = run[0].to(place.dtype)
            starts = (place[: len(place) - len(run) + 1] == value).nonzero()[:4096, 0]
            windows = place[starts[:, None] + torch.arange(len(run), device=place.device)].float()
        else:
            windows = place.unfold(0, len(run), 1)
        if len(windows):
            least = min(least, float((windows - run).abs().amax(1).min()))
    return least


def layer_outputs(
    model: Any, samples: Sequence[LayerSample], device: Any
) -> dict[tuple[tuple[int, ...], int], list[torch.Tensor]]:
    """Outputs, in fp32, of the layers that take vectors of the samples' sizes, by (numbers in the name, size).

    Of a layer whose forward takes something else there is none.
    """
    found: dict[tuple[tuple[int, ...], int], list[torch.Tensor]] = {}
    dtype = next(model.parameters()).dtype
    vectors = {size: probe_vector(size).to(device, dtype) for size in {sample["inputs"] for sample in samples} if size}
    below = set[str]()
    for name, layer in model.named_modules():
        if any(name.startswith(f"{owner}.") for owner in below):
            continue
        base = getattr(layer, "base_layer", layer)
        if base is not layer:
            below.add(name)  # an adapter's: its parts are no layers of their own
        sizes = [getattr(base, name, None) for name in ("input_size", "in_features", "nx")]  # vLLM's, torch's, GPT-2's
        size = next(filter(None, sizes), 0)
        if size in vectors:
            with contextlib.suppress(Exception):
                found.setdefault((numbers_in(name), size), []).append(_output(layer, base, vectors[size]))
    if hasattr(model, "compute_logits"):  # a vector of another size than the head's would end the process
        for size in {sample["inputs"] for sample in samples if sample["is_head"]}:
            found.setdefault(((), size), []).append(model.compute_logits(vectors[size][None])[0].float())
    return found


def _output(layer: Any, base: Any, vector: torch.Tensor) -> torch.Tensor:
    if getattr(base, "input_is_parallel", False):
        vector = vector.chunk(base.tp_size)[base.tp_rank]
    output = layer(vector[None])
    output, bias = output if isinstance(output, tuple) else (output, None)
    return (output[0] if bias is None else output[0] + bias).float()


def numbers_in(name: str) -> tuple[int, ...]:
    """The parts of a name that are numbers: its layer, and its expert."""
    return tuple(int(part) for part in name.split(".") if part.isdigit())
