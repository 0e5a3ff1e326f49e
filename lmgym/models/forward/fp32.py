"""A forward in fp32 of a model whose weights have 16 bits, one layer at a time: a whole fp32 copy may not fit."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch

from lmgym.models.forward.anatomy import forwards
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.logprobs import token_logprobs
from lmgym.models.forward.packed_rows import PackedRows


def logprobs_in_fp32(decoder: Decoder, batch: PackedRows, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities [M] of targets [M] at what the batch reads, computed in fp32 whatever type the weights have."""
    blocks = list(decoder.blocks)
    of_layers = {id(p) for block in blocks for p in block.parameters()}
    with _widened([p for p in decoder.model.parameters() if id(p) not in of_layers]):
        with forwards({block: _in_fp32(block) for block in blocks}):
            normed = decoder.hidden(batch)
        return token_logprobs(decoder, normed, targets, temperature)


def _in_fp32(block: torch.nn.Module) -> Callable:
    forward = block.forward

    def widened(*args, **kwargs):
        with _widened(list(block.parameters())):
            return forward(*args, **kwargs)

    return widened


@contextlib.contextmanager
def _widened(parameters: Sequence[torch.Tensor]) -> Iterator[None]:
    """These in fp32 for the length of a `with`; behind it they are the very tensors that they were."""
    kept = [(parameter, parameter.data) for parameter in parameters]
    try:
        for parameter, data in kept:
            parameter.data = data.float()
        yield
    finally:
        for parameter, data in kept:
            parameter.data = data
