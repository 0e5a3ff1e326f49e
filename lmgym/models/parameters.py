"""Weights of a model: gathered under ZeRO-3, rounded, counted."""

import contextlib
import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from lmgym.distributed.deepspeed_engine import gathered_parameters
from lmgym.models.saving import unwrap_adapters

LINEAR = (nn.Linear, Conv1D)  # Conv1D is GPT-2's


def gathered(parameters: Sequence[torch.Tensor], modifier_rank: int | None = None):
    """Within a `with`, gathers parameters that ZeRO-3 has sharded; does nothing for others."""
    if not any(hasattr(p, "ds_id") for p in parameters):
        return contextlib.nullcontext()
    return gathered_parameters(parameters, modifier_rank)


def count_parameters(model) -> tuple[int, int]:
    """(trainable, all) parameters, in whole sizes also under ZeRO-3."""
    sizes = [(getattr(p, "ds_numel", p.numel()), p.requires_grad) for p in model.parameters()]
    return sum(size for size, trainable in sizes if trainable), sum(size for size, _ in sizes)


def is_sharded(layer: nn.Module) -> bool:
    """True if ZeRO-3 keeps a part of the layer's weights on each rank.

    Reading `layer.weight` in a forward would gather it, which hangs unless all ranks do so.
    """
    for weight in layer._parameters.values():  # those of `parameters()`, without its search for submodules
        if weight is not None:
            return hasattr(weight, "ds_id")
    return hasattr(next(layer.parameters()), "ds_id")


def copied(model, dtype: torch.dtype):
    """A frozen copy with weights of this dtype, cast one by one, so that there is never a second copy in fp32.

    Buffers keep their dtype: see round_weights in lmgym/models/classifiers.py.
    """
    weights = {id(p): nn.Parameter(p.detach().to(dtype, copy=True), False) for p in model.parameters()}
    return copy.deepcopy(model, weights)


def with_rounded_linear_layers(model):
    """A copy for sampling under autocast: trained linear layers in bf16; everything else is the model's own."""
    memo: dict[int, object] = {id(p): p for p in model.parameters()}
    words = unwrap_adapters(model).get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, LINEAR):
            for parameter in module.parameters(recurse=False):
                if parameter is not words and parameter.dtype == torch.float32:
                    memo[id(parameter)] = nn.Parameter(parameter.detach().to(torch.bfloat16), False)
    found = copy.deepcopy(model, memo)
    head = unwrap_adapters(found).get_output_embeddings()
    if head.weight is words and words.dtype == torch.float32:
        head.weight = nn.Parameter(words.detach().to(torch.bfloat16), False)
    return found
