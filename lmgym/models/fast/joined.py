"""Linear layers of one input as one product, in the way that suits the rows at hand.

Design decisions:
- Sampling makes thousands of products of few rows: there the time goes into reading weights, and how these lie decides.
  On a CPU a product of one row reads a transposed copy, one of up to 64 rows a copy that oneDNN packs, in bf16 that of
  one row too. GPT-2 small in fp32, 4 rows, every matrix of a step: 6 ms packed, 14 transposed, 11 as torch keeps them;
  one row: 6.3 transposed, 7.7 packed. In bf16, [688, 256]: one row 18 microseconds packed, 30 transposed; 16 rows 42
  and 60. Copies are made when they are first needed, and again once a weight has changed.
- oneDNN compiles a product for every number of rows and keeps it, .7 MiB each: few numbers are asked for.
- Only who calls `refresh` gets copies. Training reads the weights themselves, through their modules where ZeRO-3 or an
  adapter wants to know of it.
"""

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from transformers.pytorch_utils import Conv1D

FEW_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)  # what fewer rows are filled up to
# numbers of a matrix that is read from the cache anyway: packing it gains nothing; in bf16 the other way costs more
SMALL, SMALL_IN_BF16 = 1 << 18, 1 << 17


class Joined:
    """Linear layers of one input as one product: `[N, W] -> [N, sum of their widths]`."""

    def __init__(self, *layers) -> None:
        self.layers = layers
        # an adapter is more than its weight
        self.plain = all(
            type(x) in (nn.Linear, Conv1D) and (x.bias is None) == (layers[0].bias is None) for x in layers
        )
        self.copies = self.packs = False
        self.fewest = 2  # rows that read a packed copy
        self.seen: list[tuple[int, int]] = []
        self._forget()

    def _forget(self) -> None:
        self.bias: torch.Tensor | None = None
        self.transposed: torch.Tensor | None = None
        self.packed: torch.Tensor | None = None

    def parameters(self) -> Iterator[torch.Tensor]:
        """Of all its layers."""
        for layer in self.layers:
            yield from layer.parameters()

    def refresh(self, renew: bool = False) -> None:
        """To be called before sampling: training changes weights in place.

        Fused optimizers and DeepSpeed change them without a trace in torch's version counters: `renew` tells.
        """
        weights = [layer.weight for layer in self.layers] if self.plain else []
        self.copies = self.plain and weights[0].device.type == "cpu"
        now = versions(self.parameters()) if self.copies else []
        if renew or now != self.seen:
            self._forget()
        self.seen = now
        if self.copies:
            dtype = weights[0].dtype
            self.fewest, least = (1, SMALL_IN_BF16) if dtype == torch.bfloat16 else (2, SMALL)
            self.packs = sum(weight.numel() for weight in weights) >= least and can_pack(dtype)

    def __call__(self, inputs: torch.Tensor, added: torch.Tensor | None = None) -> torch.Tensor:
        """The product, and what is to be added to it, [N, sum of the widths]."""
        if self.copies:
            rows = inputs.shape[0]
            if self.packs and self.fewest <= rows <= FEW_ROWS[-1] and inputs.dtype == self.layers[0].weight.dtype:
                return _sum(self._of_few(inputs), added)
            if rows == 1 or not self.packs:
                return self._of_transposed(inputs, added)
        return _sum(self._of_layers(inputs), added)

    def _of_layers(self, inputs: torch.Tensor) -> torch.Tensor:
        # what is smaller is joined, the weights or what comes out; ZeRO-3 gathers a weight in its module's call
        many = len(inputs) > inputs.shape[-1] and not ranks_learn_together()
        if len(self.layers) > 1 and self.plain and many and not is_sharded(self.layers[0]):
            return F.linear(inputs, *self._side_by_side())
        found = [layer(inputs) for layer in self.layers]
        return found[0] if len(found) == 1 else torch.cat(found, -1)

    def _of_few(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.packed is None:
            with torch.no_grad():
                weight, self.bias = self._side_by_side()
                self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        rows = len(inputs)
        if fillers := next(size for size in FEW_ROWS if size >= rows) - rows:
            inputs = F.pad(inputs, (0, 0, 0, fillers))
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.bias, "none", [], "")[:rows]

    def _of_transposed(self, inputs: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
        if self.transposed is None:
            with torch.no_grad():
                weight, self.bias = self._side_by_side()
                self.transposed = weight.t().contiguous()
        if self.bias is not None:
            return _sum(torch.addmm(self.bias, inputs, self.transposed), added)
        if added is not None and added.dtype == inputs.dtype:
            return torch.addmm(added, inputs, self.transposed)
        return _sum(torch.mm(inputs, self.transposed), added)

    def _side_by_side(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """[widths, W] and [widths]."""
        weights = [layer.weight.t() if type(layer) is Conv1D else layer.weight for layer in self.layers]
        biases = [layer.bias for layer in self.layers]
        if len(weights) == 1:
            return weights[0], biases[0]
        return torch.cat(weights), None if biases[0] is None else torch.cat(biases)


def _sum(found: torch.Tensor, added: torch.Tensor | None) -> torch.Tensor:
    return found if added is None else added + found


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch and this processor have packed products of a type."""
    ops = torch.ops.mkldnn
    if not (torch.backends.mkldnn.is_available() and hasattr(ops, "_reorder_linear_weight")):
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and ops._is_mkldnn_bf16_supported())


def versions(weights: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Another list once a weight has changed or moved."""
    return [(weight.data_ptr(), weight._version) for weight in weights]


def ranks_learn_together() -> bool:
    """Whether several ranks run a forward whose gradients are wanted, each on its own number of tokens.

    DeepSpeed's ZeRO 2 lays gradients into a bucket as they become ready, and adds the buckets of all ranks up by place:
    the order must be the same on each, so which operations make up a layer must not depend on the number of tokens.
    """
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.is_grad_enabled() and several and torch.distributed.get_world_size() > 1


def is_sharded(layer: nn.Module) -> bool:
    """Whether ZeRO-3 has a part of its weights on each rank.

    To read `layer.weight` in a forward would gather it, together with the other ranks: where these do not, they hang.
    """
    for weight in layer._parameters.values():  # what `parameters()` goes over, without its search for submodules
        if weight is not None:
            return hasattr(weight, "ds_id")
    return hasattr(next(layer.parameters()), "ds_id")
