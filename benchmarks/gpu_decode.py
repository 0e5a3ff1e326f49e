"""One step of decoding: its operations a layer, milliseconds, and share of the memory's bandwidth.

A step of a large batch reads all weights and the keys and values of each row once; what it takes beyond that is
launches and the operations' own overhead, which a fused step would save.
"""

import statistics
import time
from typing import Any

import numpy as np
import torch
from gpu_training import model_to_sample
from model_costs import Shape, Way, generation_bytes
from roofs import synchronize
from torch.utils._python_dispatch import TorchDispatchMode

from lmgym.generation.steps import PackedSteps
from lmgym.models.forward.decoder import Decoder

PROMPT, STEPS, WARMUP = 256, 64, 8


class CountOperations(TorchDispatchMode):
    """Operations that compute something: views of what is there launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one, and run it."""
        returned = func._schema.returns
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in returned)
        self.found += not is_view
        return func(*args, **(kwargs or {}))


def measure_decode(name: str, batches: list[int], roofs: dict[str, float], device: torch.device) -> list[dict]:
    """Steps after prompts of one length, for each batch of rows: bf16 weights on a GPU, fp32 on a CPU."""
    shape, model, dtype = model_to_sample(name, device)
    decoder = Decoder(model)
    return [_of_batch(decoder, shape, rows, roofs, device, dtype) for rows in batches]


def _of_batch(
    decoder: Decoder, shape: Shape, rows: int, roofs: dict[str, float], device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    prompts = np.random.default_rng(0).integers(2, shape.vocabulary, (rows, PROMPT)).tolist()
    ids = torch.full((rows,), 2, device=device)
    eager = PackedSteps(decoder, STEPS)
    eager.graphs = False
    eager.start(prompts, 1)
    eager.advance([ids])
    with CountOperations() as counted:
        eager.advance([ids])
    steps, seconds = PackedSteps(decoder, STEPS), []
    steps.start(prompts, 1)
    for _ in range(STEPS - 1):
        synchronize(device)
        began = time.perf_counter()
        steps.advance([ids])
        synchronize(device)
        seconds.append(time.perf_counter() - began)
    step = statistics.median(seconds[WARMUP:])  # a graph is captured in the first
    read = generation_bytes(shape, Way("whole"), [PROMPT] * rows, STEPS, dtype.itemsize) / STEPS
    return {
        "rows": rows,
        "prompt": PROMPT,
        "operations": counted.found,
        "operations_a_layer": counted.found / shape.layers,
        "milliseconds": 1e3 * step,
        "milliseconds_a_layer": 1e3 * step / shape.layers,
        "share_of_bandwidth": read / step / roofs["bytes_per_second"],
    }
