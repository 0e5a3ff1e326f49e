"""A forward in a wider dtype than the weights have, one layer at a time: a whole wider copy may not fit."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import policy_logprobs
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.structure import replaced_forwards


def wider_logprobs(
    decoder: Decoder, batch: PackedRows, targets: torch.Tensor, temperature: float, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """`policy_logprobs` of targets where the batch is read, computed in `dtype` whatever that of the weights is."""
    blocks = list(decoder.blocks)
    of_layers = {id(p) for block in blocks for p in block.parameters()}
    others = [p for p in decoder.model.parameters() if id(p) not in of_layers]
    with _plain_experts(decoder.model.config), _widened(others, dtype):
        with replaced_forwards({block: _wider(block, dtype) for block in blocks}):
            normed = decoder.hidden(batch)
        return policy_logprobs(decoder, normed, batch, targets, temperature)[0]


def _wider(block: torch.nn.Module, dtype: torch.dtype) -> Callable:
    forward = block.forward

    def widened(*args, **kwargs):
        with _widened(list(block.parameters()), dtype):
            return forward(*args, **kwargs)

    return widened


@contextlib.contextmanager
def _plain_experts(config) -> Iterator[None]:
    """Within a `with`, experts are computed one by one: torch's grouped product has no fp64."""
    before = config._experts_implementation
    config._experts_implementation = "eager"
    try:
        yield
    finally:
        config._experts_implementation = before


@contextlib.contextmanager
def _widened(parameters: Sequence[torch.Tensor], dtype: torch.dtype) -> Iterator[None]:
    """Within a `with`, the parameters are of `dtype`; afterwards they are the original tensors."""
    kept = [(parameter, parameter.data) for parameter in parameters]
    try:
        for parameter, data in kept:
            parameter.data = data.to(dtype)
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
