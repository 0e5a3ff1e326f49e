"""Frozen embeddings in 16 bits under bf16's autocast, where that loses nothing.

A vector of a table in bf16, cast to fp32, is the vector that the checkpoint has, if every number of the table survives
bf16. The table's own numbers decide: those of a checkpoint in bf16 do; those of one in fp32 or fp16, and a vocabulary
that was extended here (the mean of other vectors), do not, and stay in fp32. So do embeddings that compute more than
a look-up: Gemma multiplies by a factor that it rounds to the table's dtype.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from lmgym.distributed.weights import BLOCK
from lmgym.models.saving import unwrap_adapters


def frozen_embeddings(model) -> Iterator[nn.Embedding]:
    """Input embeddings that are frozen and only looked up, also those below an adapter or beside a trained copy."""
    for module in unwrap_adapters(model).get_input_embeddings().modules():
        if type(module) is nn.Embedding and not module.weight.requires_grad:
            yield module


def round_frozen_embeddings(model) -> None:
    """Cast frozen tables in fp32 to bf16, in place, where every number survives; vectors stay in fp32.

    A tied head follows. Call it once it is known which weights are trained; from then on run the model under autocast.
    """
    for embeddings in frozen_embeddings(model):
        if embeddings.weight.dtype == torch.float32 and survives_bf16(embeddings.weight):
            embeddings.weight.data = embeddings.weight.data.to(torch.bfloat16)
            # not a class with another forward: accelerate sets one on the module itself
            embeddings.register_forward_hook(_in_fp32)


def _in_fp32(module: nn.Module, inputs: Any, vectors: torch.Tensor) -> torch.Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))  # a forward in fp64 stays one


def gives_fp32(model) -> bool:
    """True if the vectors of the model's input embeddings are in fp32, whatever their table is in."""
    words = unwrap_adapters(model).get_input_embeddings()
    hooks = [hook for module in words.modules() for hook in module._forward_hooks.values()]
    return words.weight.dtype == torch.float32 or _in_fp32 in hooks


def survives_bf16(weight: torch.Tensor) -> bool:
    """True if every number of [rows, width] is the same in bf16."""
    blocks = weight.detach().split(max(1, BLOCK // weight.shape[1]))
    return all(torch.equal(block, block.to(torch.bfloat16).to(block.dtype)) for block in blocks)
