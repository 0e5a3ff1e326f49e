"""Settings of a layer's attention beyond causality, and attention with all weights at once."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

FLASH_WIDTH = 256  # most numbers of a head that flash attention computes on a GPU


@dataclass(frozen=True)
class LayerAttention:
    """Attention settings of a layer, beyond causality."""

    scaling: float
    window: int | None = None
    """a token sees itself and the window - 1 tokens before it; None: all before it"""
    softcap: float | None = None
    """scores s become softcap * tanh(s / softcap) (Gemma 2)"""
    sinks: torch.Tensor | None = None
    """[heads]: an additional score in each softmax, without a value (GPT-OSS)"""
    dropout: float = 0.0


def eager_attention(q, k, v, layer: LayerAttention, mask: torch.Tensor) -> torch.Tensor:
    """[B, heads, Q, D] with a soft cap or sinks, and with dropout: all weights of Q x T exist."""
    k, v = (states.repeat_interleave(q.shape[1] // states.shape[1], dim=1) for states in (k, v))
    weights = capped(torch.matmul(q * layer.scaling, k.transpose(2, 3)), layer.softcap)
    sinks = None if layer.sinks is None else layer.sinks[:, None, None]
    weights = softmax_with_sinks(weights.masked_fill(~mask, -torch.inf), sinks)
    return torch.matmul(F.dropout(weights, layer.dropout), v)


def capped(scores: torch.Tensor, softcap: float | None) -> torch.Tensor:
    """Scores bounded by plus and minus `softcap`."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def softmax_with_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax over the last axis of scores [..., T] with sinks, broadcast to [..., 1], in its denominator."""
    if sinks is None:
        return scores.softmax(-1)
    sinks = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]
