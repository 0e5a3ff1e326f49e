"""Functions whose gradients are written here, since torch's own go over their tensors several times more.

Design decisions:
- Only what showed in a profile of an iteration of PPO on a CPU (benchmarks/ppo.py): there a pass over the states of a
  layer costs as much as a tenth of its products. Each stands beside torch's own way in tests/unit/test_functions.py.
- Measured on one thread, forward and backward (EPYC 9004): the norm of 2,290 states of 256 numbers 3.2 -> 1.7 ms, the
  gate of as many of 688 18 -> 8 ms, the log-probabilities of 768 tokens out of 8,192 12.4 -> 8.2 ms.
- First derivatives only: a backward through a backward raises.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """hidden / sqrt(mean(hidden^2) + epsilon) * weight over the last axis (Zhang and Sennrich 2019)."""
    if hidden.device.type != "cpu" or not hidden.dtype == weight.dtype == torch.float32:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon)
    if torch.is_grad_enabled():
        return RMSNorm.apply(hidden, weight, epsilon)
    return (hidden * _inverse_root(hidden, epsilon)).mul_(weight)


def _inverse_root(hidden: torch.Tensor, epsilon: float) -> torch.Tensor:
    """1 / sqrt(mean(hidden^2) + epsilon), [..., 1], as sqrt(W) / hypot(|hidden|, sqrt(W epsilon)).

    Few kernels, and no number among their arguments, which torch makes a tensor of at each call: for 4 states of 256
    numbers the norm took 26 microseconds, and takes 10.
    """
    root, floor = _constants(hidden.shape[-1], epsilon)
    return torch.div(root, torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).hypot_(floor))


@functools.cache
def _constants(width: int, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """sqrt(W) and sqrt(W epsilon), [1] each, on the CPU."""
    with torch.inference_mode(False):
        floor = torch.tensor([(width * epsilon) ** 0.5], device="cpu")
        return torch.tensor([width**0.5], device="cpu"), floor


class RMSNorm(torch.autograd.Function):
    """`rms_norm` of [..., W] in fp32."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Keeps the normed states, not the states."""
        inverse = _inverse_root(hidden, epsilon)
        normed = hidden * inverse
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        """With n the normed states and r the inverse root: r (g w - n mean(g w n)), and the sum of g n."""
        normed, inverse, weight = ctx.saved_tensors
        along = gradient * normed
        of_weight = along.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        mean = (along @ weight).div_(-along.shape[-1])
        of_hidden = torch.mul(gradient, weight, out=along).addcmul_(normed, mean[..., None]).mul_(inverse)
        return of_hidden, of_weight, None


def gated_silu(joined: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, [N, I] of gate and up side by side, [N, 2 I]."""
    if torch.is_grad_enabled():
        return GatedSilu.apply(joined)
    gate, up = joined.chunk(2, -1)
    return F.silu(gate).mul_(up)


class GatedSilu(torch.autograd.Function):
    """silu(gate) * up, [N, I] of gate and up side by side, [N, 2 I] (Shazeer 2020, SwiGLU)."""

    @staticmethod
    def forward(ctx: Any, joined: torch.Tensor) -> torch.Tensor:
        """Keeps silu(gate) too."""
        gate, up = joined.chunk(2, -1)
        opened = F.silu(gate)
        ctx.save_for_backward(joined, opened)
        return opened * up

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Of both, written side by side."""
        joined, opened = ctx.saved_tensors
        gate, up = joined.chunk(2, -1)
        found = torch.empty_like(joined)
        of_gate, of_up = found.chunk(2, -1)
        torch.mul(gradient, opened, out=of_up)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=of_gate)
        return found


class Taken(torch.autograd.Function):
    """Some places of a tensor's first axis, each at most once: its backward writes where index_select's adds.

    On a CPU that sum goes place by place, and took as long as a product.
    """

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """[M, ...] of [N, ...]."""
        ctx.save_for_backward(places)
        ctx.count = len(states)
        return states.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """0 where nothing was taken."""
        [places] = ctx.saved_tensors
        return gradient.new_zeros(ctx.count, *gradient.shape[1:]).index_copy_(0, places, gradient), None


class Spread(torch.autograd.Function):
    """`Taken` the other way round: entries at places of a longer tensor, 0 elsewhere; one kernel, whatever the rows."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, places: torch.Tensor, count: int) -> torch.Tensor:
        """[count, ...] of [M, ...]."""
        ctx.save_for_backward(places)
        return states.new_zeros(count, *states.shape[1:]).index_copy_(0, places, states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Those of the places."""
        [places] = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class TargetLogprobs(torch.autograd.Function):
    """Log-probabilities [M] in fp32 of targets [M] from logits [M, vocabulary], which it may overwrite.

    log p = logit - largest + log(p of the largest): so neither the log-softmax nor a logsumexp is made.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Keeps the probabilities."""
        chosen = logits.gather(1, targets[:, None])[:, 0].float()
        largest = logits.amax(-1).float()
        every = torch.softmax(logits, -1, dtype=torch.float32)
        ctx.save_for_backward(every, targets)
        ctx.dtype = logits.dtype
        return chosen - largest + every.amax(-1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """d log p(target) / d logits is 1 at the target, less the probabilities."""
        every, targets = ctx.saved_tensors
        found = every * -gradient[:, None]
        return found.scatter_add_(1, targets[:, None], gradient[:, None]).to(ctx.dtype), None
