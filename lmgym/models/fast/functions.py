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

from lmgym.models.fast.products import added_product, product

CACHED_LOGITS = 1 << 21  # 8 MiB of them stay in a processor's cache


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """hidden / sqrt(mean(hidden^2) + epsilon) * weight over the last axis (Zhang and Sennrich 2019).

    Of the weight's type. On a CPU it is computed in fp32, or float64 as its weight, and rounded once it is normed.
    """
    if hidden.device.type == "cpu" and not torch.is_grad_enabled() and weight.dtype != torch.float64:
        hidden = hidden.float()
        return (hidden * inverse_root(hidden, epsilon)).to(weight.dtype).mul_(weight)
    hidden = hidden.to(weight.dtype)  # of one type: torch's fused kernel refuses others, and is several without
    if hidden.device.type != "cpu" or hidden.dtype != torch.float32:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, epsilon)
    return RMSNorm.apply(hidden, weight, epsilon)


def inverse_root(hidden: torch.Tensor, epsilon: float) -> torch.Tensor:
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
        inverse = inverse_root(hidden, epsilon)
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
    """Log-probabilities [M] in fp32 of targets [M] from logits [M, vocabulary], which it overwrites.

    One tensor of that size serves as logits, probabilities and gradient. It is the largest that training has, and new
    memory is zeroed by the kernel page by page: in bf16 that took four times as long as the softmax. So there is one
    backward: a second raises.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Keeps the probabilities, less 1 at the target, in the type of the logits."""
        found = logits.new_empty(len(targets), dtype=torch.float32)
        for part in _chunks(logits):
            every = logits[part].float()
            found[part] = _logprobs_of(every, targets[part])
            if every.dtype != logits.dtype:
                logits[part] = every
        ctx.save_for_backward(logits.detach())
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """d log p(target) / d logits is 1 at the target, less the probabilities."""
        [every] = ctx.saved_tensors
        for part in _chunks(every):
            scale = -gradient[part, None]
            if every.dtype == torch.float32:
                every[part].mul_(scale)
            else:  # of two types torch would make a third
                every[part] = every[part].float().mul_(scale)
        return every, None


def head_logprobs(
    states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, temperature: float,
    rows: int,
) -> torch.Tensor:  # fmt: skip
    """Log-probabilities [M] in fp32 of targets [M], from states [M, W] by a head [vocabulary, W] with or without bias.

    Logits are there for `rows` tokens at a time.
    """
    # a function is told of weights that learn, but not whether gradients are wanted
    keeps = torch.is_grad_enabled()
    return HeadLogprobs.apply(states, weight, bias, targets, temperature, rows, keeps)


class HeadLogprobs(torch.autograd.Function):
    """`head_logprobs`.

    d log p(target) / d state is (W[target] - sum_v p_v W_v) / temperature, known as soon as the probabilities are: so
    states need no logits in the backward (the order of work is that of Liger's cross entropy, Hsu et al. 2024, which
    needs to know the loss). A head that learns keeps the probabilities: what comes in scales the states, which are
    narrower.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor,
        temperature: float, rows: int, keeps: bool,
    ) -> torch.Tensor:  # fmt: skip
        """Keeps [M, W], the derivative with the sign turned, and the probabilities, less 1 at the target."""
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        found = states.new_empty(len(targets), dtype=torch.float32)
        slopes = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        learns = keeps and any(ctx.needs_input_grad[1:3])
        rounds, every = dtype != torch.float32, []
        # fp32 as it comes, block by block; what is rounded into one tensor, so that the backward is one product, by way
        # of one block in fp32 that stays in the cache
        at_once = min(rows, len(targets)) if rounds else 0
        narrow = weight.new_empty(len(targets) if rounds and learns else at_once, len(weight), dtype=dtype)
        wide = narrow.new_empty(at_once, len(weight), dtype=torch.float32)
        with torch.autocast(kind, enabled=False):  # it would round the whole weight at each use
            low, low_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
            for start in range(0, len(targets), rows):
                part = slice(start, start + rows)
                inputs, by = states[part].to(dtype), product if len(targets) - start >= rows else F.linear
                if rounds:
                    rounded = narrow[part] if learns else narrow[: len(inputs)]
                    logits = wide[: len(inputs)].copy_(_product_into(rounded, inputs, low, low_bias))
                else:
                    rounded = logits = by(inputs, low, low_bias)
                logits = logits if temperature in (0, 1) else logits.div_(temperature)
                found[part] = _logprobs_of(logits, targets[part])
                if rounds:
                    rounded.copy_(logits)
                elif learns:
                    every.append(logits)
                if slopes is not None:
                    slopes[part] = by(rounded, low.t())
        every = [narrow] if rounds and learns else every
        ctx.scale, ctx.rows = -1 / (temperature or 1), rows if dtype == torch.float32 else max(1, len(targets))
        ctx.save_for_backward(*(kept for kept in (states if learns else None, slopes) if kept is not None), *every)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The derivative, times the gradient of each token."""
        kept, scale = list(ctx.saved_tensors), (gradient * ctx.scale)[:, None]
        of_states = of_weight = of_bias = None
        states: Any = kept.pop(0) if any(ctx.needs_input_grad[1:3]) else None
        if ctx.needs_input_grad[0]:
            slopes = kept.pop(0)
            of_states = slopes * scale.to(slopes.dtype)
        for start, every in zip(range(0, len(gradient), ctx.rows), kept, strict=False):
            part = slice(start, start + ctx.rows)
            if ctx.needs_input_grad[1]:
                of_weight = added_product(of_weight, every, (states[part] * scale[part]).to(every.dtype))
            if ctx.needs_input_grad[2]:
                own = torch.mv(every.t(), scale[part, 0].to(every.dtype))
                of_bias = own.float() if of_bias is None else of_bias.add_(own)
        return of_states, of_weight, of_bias, None, None, None, None


def _product_into(
    found: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """`found`, which becomes inputs weight^T + bias."""
    if bias is None:
        return torch.mm(inputs, weight.t(), out=found)
    return torch.addmm(bias, inputs, weight.t(), out=found)


def _logprobs_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [M] of targets [M]; the logits [M, vocabulary], fp32, become what is named below.

    log p = logit - largest + log(p of the largest): so neither the log-softmax nor a logsumexp is made. Logits become
    the probabilities, less 1 at the target: in fp32, before anything rounds it, near certainty nothing cancels.
    """
    targets = targets[:, None]
    chosen, largest = logits.gather(1, targets)[:, 0], logits.amax(-1)
    torch.softmax(logits, -1, out=logits)
    found = chosen - largest + logits.amax(-1).log()
    logits.scatter_add_(1, targets, logits.new_full((1, 1), -1).expand(len(logits), 1))
    return found


def _chunks(logits: torch.Tensor) -> list[slice]:
    """Rows of [M, vocabulary] that a CPU's cache holds together."""
    rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]
