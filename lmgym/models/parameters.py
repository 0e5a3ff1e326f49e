"""Weights of a model: gathered under ZeRO-3, rounded, counted."""

import contextlib
import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmgym.distributed.deepspeed_engine import gathered_parameters
from lmgym.models.saving import below_adapters

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


def copied(model, dtype: torch.dtype):
    """A frozen copy with weights of this type, one by one: there is no second copy as wide as the first in between.

    Buffers stay as they are: see round_weights in lmgym/models/parameters.py.
    """
    weights = {id(p): nn.Parameter(p.detach().to(dtype, copy=True), False) for p in model.parameters()}
    return copy.deepcopy(model, weights)


def with_rounded_linear_layers(model):
    """A copy for sampling under autocast: linear layers in bf16, frozen; everything else is the model's own."""
    memo: dict[int, object] = {id(p): p for p in model.parameters()}
    words = below_adapters(model).get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, LINEAR):
            for parameter in module.parameters(recurse=False):
                if parameter is not words:
                    memo[id(parameter)] = nn.Parameter(parameter.detach().to(torch.bfloat16), False)
    found = copy.deepcopy(model, memo)
    head = below_adapters(found).get_output_embeddings()
    if head.weight is words:
        head.weight = nn.Parameter(words.detach().to(torch.bfloat16), False)
    return found
