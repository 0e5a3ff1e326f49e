"""Heads of classifiers: where a family keeps its own, a new one, and one that computes in fp32."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from lmgym.errors import InputError
from lmgym.models.parameters import gathered


def head_name(model) -> str:
    """Where the family keeps its classification head."""
    found = [name for name in ("score", "classifier") if hasattr(model, name)]
    if not found:
        family = model.config.model_type
        raise InputError(f"classifiers of {family} have no head called score or classifier; use another family")
    return found[0]


def is_decoder(classifier) -> bool:
    """A classifier over a decoder, which reads the last token; transformers calls the head of those `score`."""
    return hasattr(classifier, "score")


def init_head(model, seed: int) -> None:
    head = getattr(model, head_name(model))
    if not isinstance(head, nn.Linear):
        return  # families with a deeper head keep their own initialisation
    generator = torch.Generator().manual_seed(seed)
    with gathered([head.weight], modifier_rank=0), torch.no_grad():
        if head.weight.numel():
            drawn = torch.randn(head.weight.shape, generator=generator) / math.sqrt(head.in_features + 1)
            head.weight.copy_(drawn.to(head.weight))


def head_modules(model) -> list[str]:
    """What stands between the trunk's hidden states and the logits, and may be new: an encoder's pooler is."""
    beside_trunk = [name for name, child in model.named_children() if list(child.parameters())]
    beside_trunk.remove(model.base_model_prefix)
    trunk = getattr(model, model.base_model_prefix)
    return beside_trunk + (["pooler"] if getattr(trunk, "pooler", None) is not None else [])


class Float32Head(nn.Linear):
    """A linear head that computes in fp32 whatever the trunk's precision: scores in bf16 have 8 bits."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(hidden.float(), self.weight.float(), bias)


def round_scorer(model: nn.Module, dtype: torch.dtype) -> None:
    """`round_weights` of all but a Float32Head, which would compute in fp32 with weights of 8 bits."""
    heads = {id(p) for module in model.modules() if isinstance(module, Float32Head) for p in module.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in heads:
            parameter.data = parameter.data.to(dtype)
