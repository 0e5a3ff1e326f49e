"""A forward in fp32 of a model whose weights have 16 bits, one layer at a time: a whole fp32 copy may not fit."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import policy_logprobs
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.structure import replaced_forwards


def logprobs_in_fp32(decoder: Decoder, batch: PackedRows, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """`policy_logprobs` of targets where the batch is read, computed in fp32 whatever the weights' dtype."""
    blocks = list(decoder.blocks)
    of_layers = {id(p) for block in blocks for p in block.parameters()}
    with _widened([p for p in decoder.model.parameters() if id(p) not in of_layers]):
        with replaced_forwards({block: _in_fp32(block) for block in blocks}):
            normed = decoder.hidden(batch)
        return policy_logprobs(decoder, normed, batch, targets, temperature)[0]


def _in_fp32(block: torch.nn.Module) -> Callable:
    forward = block.forward

    def widened(*args, **kwargs):
        with _widened(list(block.parameters())):
            return forward(*args, **kwargs)

    return widened


@contextlib.contextmanager
def _widened(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within a `with`, the parameters are fp32; afterwards they are the original tensors."""
    kept = [(parameter, parameter.data) for parameter in parameters]
    try:
        for parameter, data in kept:
            parameter.data = data.float()
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
