"""Copies of a model's weights in another type."""

import copy

import torch
from torch import nn

from lmgym.models.parameters import LINEAR
from lmgym.models.saving import below_adapters


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
