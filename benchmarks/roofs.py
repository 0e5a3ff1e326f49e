"""Peak rates of a device: by a large copy and a large matrix product, and by its data sheet."""

import statistics
import time
from collections.abc import Callable

import torch

from lmgym.models.memory import GIB

# bytes a second of memory, dense bf16 operations a second: NVIDIA's data sheets of the SXM parts (H200 Tensor Core GPU:
# 4.8 TB/s, 1,979 TFLOPS "with sparsity", half of it without; H100: 3.35 TB/s and the same processor)
DATA_SHEETS = {"NVIDIA H200": (4.8e12, 989e12), "NVIDIA H100 80GB HBM3": (3.35e12, 989e12)}
BLOCKS = 7  # timings, of which the median is taken


def synchronize(device: torch.device) -> None:
    """Waits for what was asked of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Wall seconds of one of so many."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times


def measure_roofs(device: torch.device) -> dict[str, float]:
    """Bytes (read and written) and bf16 operations a second, on random numbers; on a CPU small ones, in fp32."""
    on_gpu = device.type == "cuda"
    numbers, side, times = (GIB, 8192, 10) if on_gpu else (1 << 22, 256, 1)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    source = torch.randn(numbers, dtype=dtype, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    product = torch.empty_like(a)
    best = {}
    for name, work, amount in (
        ("bytes_per_second", lambda: target.copy_(source), 2 * source.nbytes),
        ("flops_per_second", lambda: torch.mm(a, b, out=product), 2.0 * side**3),
    ):
        seconds_of(work, device, times)
        best[name] = amount / statistics.median(seconds_of(work, device, times) for _ in range(BLOCKS))
    return best


def data_sheet(name: str) -> dict[str, float] | None:
    """The same by the data sheet, where it is known."""
    if name not in DATA_SHEETS:
        return None
    return dict(zip(("bytes_per_second", "flops_per_second"), DATA_SHEETS[name], strict=True))
