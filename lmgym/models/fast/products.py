"""A matrix product of a block of tokens on a CPU, by the library that is quicker at it.

Design decisions:
- In fp32 torch asks MKL, which on AMD's processors does without AVX-512: 60 to 90 billion operations a second of an
  EPYC 9004 by the width of the matrix, oneDNN 95 to 102. Heads of large vocabularies gain most: 8,191 x 256 in half
  the time. On an EPYC without AVX-512 both make 65 to 85, but for the logits of such heads: MKL 35 to 48 where the
  vocabulary is odd (4,099; 8,191; 50,257), 56 to 69 where it is even, oneDNN 60 to 72.
- oneDNN compiles a product for every number of rows and keeps it, 2.6 MiB each in fp32: callers cut their tokens into
  blocks of a few sizes. Its plain way through matrices that are parts of wider ones takes a hundred times as long.
"""

import functools
from pathlib import Path

import torch

FEWEST_NUMBERS = 1 << 16  # of a matrix that is worth its call
FEWEST_ROWS = 64
WIDE = 4096


@functools.cache
def least_width_by_onednn() -> float:
    """From how many outputs on oneDNN's products in fp32 are quicker than torch's own; infinity where they are not."""
    cpus = Path("/proc/cpuinfo")
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not (known and cpus.exists() and "AuthenticAMD" in cpus.read_text()):
        return float("inf")
    return {"AVX512": 0, "AVX2": WIDE}.get(torch.backends.cpu.get_cpu_capability(), float("inf"))


def product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """inputs weight^T + bias, [n, a] of [n, b], [a, b] and [a], all of one type; the inputs are contiguous.

    Not seen by autograd where oneDNN serves. The weight may be a transposed view.
    """
    large = len(inputs) >= FEWEST_ROWS and weight.numel() >= FEWEST_NUMBERS
    whole = weight.is_contiguous() or weight.t().is_contiguous()
    in_fp32 = inputs.dtype == torch.float32 and inputs.device.type == "cpu"
    if large and whole and in_fp32 and len(weight) >= least_width_by_onednn():
        return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return torch.nn.functional.linear(inputs, weight, bias)


def added_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left^T right in fp32, [a, b] of [n, a] and [n, b]: what a block adds to a weight's gradient."""
    if total is not None and left.dtype == total.dtype:
        return total.addmm_(left.t(), right)
    found = torch.mm(left.t(), right)
    return found.float() if total is None else total.add_(found)
