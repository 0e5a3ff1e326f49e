"""Weights of a model: gathered under ZeRO-3, rounded, counted."""

import contextlib
from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmgym.distributed.deepspeed_engine import gathered_parameters

LINEAR = (nn.Linear, Conv1D)  # Conv1D is that of GPT-2


def gathered(parameters: Sequence[torch.Tensor], modifier_rank: int | None = None):
    """Whole parameters for the length of a `with`, where ZeRO-3 has sharded them; else nothing happens."""
    if not any(hasattr(p, "ds_id") for p in parameters):
        return contextlib.nullcontext()
    return gathered_parameters(parameters, modifier_rank)


def round_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Gives the weights this type, in place, as DeepSpeed does: `model.to(dtype)` would round buffers too.

    Rotary frequencies of 8 bits are off by a quarter of a radian at position 150.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def count_parameters(model) -> tuple[int, int]:
    """(trainable, all) parameters, whole sizes under ZeRO-3 too."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    return sum(n for n, trains in sizes if trains), sum(n for n, _ in sizes)


def is_sharded(layer: nn.Module) -> bool:
    """Whether ZeRO-3 has a part of its weights on each rank.

    To read `layer.weight` in a forward would gather it, together with the other ranks: where these do not, they hang.
    """
    for weight in layer._parameters.values():  # what `parameters()` goes over, without its search for submodules
        if weight is not None:
            return hasattr(weight, "ds_id")
    return hasattr(next(layer.parameters()), "ds_id")
