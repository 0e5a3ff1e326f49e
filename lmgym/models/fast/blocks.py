"""Parts of a layer over blocks of tokens that stay in a processor's cache, forward and backward.

Design decisions:
- A state is read from memory once where a norm, a product, a rotation or a gate would each have gone over all of them,
  and of what is between nothing is as long as the batch: an iteration of PPO on a CPU with a critic of its own takes a
  third less memory (benchmarks/ppo.py).
- Blocks have one size, since oneDNN compiles a product for every number of rows. What is left over at the end goes to
  MKL; in bf16, which oneDNN does, it is filled up to one of a few sizes.
- Kept for the backward: what came in, the states after attention, gate and up. The rest is computed again in the cache.
- Weights' gradients are added up block by block, in fp32, in the tensor that autograd receives.
- First derivatives only: a backward through a backward raises.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from lmgym.models.fast.functions import inverse_root
from lmgym.models.fast.products import added_product, product

BLOCKS = {torch.float32: 256, torch.bfloat16: 512}  # tokens: gate and up of 2 x 688 numbers each are 1.4 MB
FEWEST = 512  # tokens: with fewer, weights that are laid side by side cost more than is gained
FILLED = 64  # a last block in bf16 is filled up to a multiple of so many tokens


def blocks(tokens: int, dtype: torch.dtype) -> Iterator[slice]:
    """Of so many tokens, in their order, for products of a type."""
    size = BLOCKS[dtype]
    return (slice(start, min(start + size, tokens)) for start in range(0, tokens, size))


class Matrix:
    """Weights [O, W] of linear layers without biases, side by side: what blocks are multiplied by, in a type.

    A norm's weight [W] before them is multiplied into them: once a call, and not once a token.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], dtype: torch.dtype, norm: torch.Tensor | None = None,
        learns: bool = False,
    ) -> None:  # fmt: skip
        self.sizes, self.norm, self.learns = [len(weight) for weight in weights], norm, learns
        self.plain = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.weight = (self.plain if norm is None else self.plain * norm).to(dtype)
        self.gradient: torch.Tensor | None = None

    def of(self, inputs: torch.Tensor) -> torch.Tensor:
        """[n, W] to [n, O]."""
        return self._product(inputs, self.weight)

    def back(self, gradient: torch.Tensor) -> torch.Tensor:
        """[n, O] to [n, W]."""
        return self._product(gradient, self.weight.t())

    def _product(self, inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """[n, a] of [n, b] and [a, b]."""
        rows = len(inputs)
        if self.weight.dtype == torch.float32:
            whole = rows == BLOCKS[torch.float32]
            return product(inputs, weight) if whole else torch.mm(inputs, weight.t())
        return torch.mm(self._filled(inputs), weight.t())[:rows]

    def learn(self, gradient: torch.Tensor, inputs: torch.Tensor) -> None:
        """Adds what a block's [n, O] and [n, W] contribute to the weights' gradient, which is fp32."""
        if self.learns:
            self.gradient = added_product(self.gradient, self._filled(gradient), self._filled(inputs))

    def _filled(self, states: torch.Tensor) -> torch.Tensor:
        """Of the weights' type; where it is rounded, with zeros up to a number of rows that oneDNN has compiled."""
        states = states.to(self.weight.dtype)
        if self.weight.dtype == torch.float32 or not (fillers := -len(states) % FILLED):
            return states
        return F.pad(states, (0, 0, 0, fillers))

    def gradients(self) -> list[torch.Tensor | None]:
        """One a weight."""
        if self.gradient is None:
            return [None] * len(self.sizes)
        found = self.gradient if self.norm is None else self.gradient * self.norm
        return list(found.split(self.sizes))

    def gradient_of_norm(self) -> torch.Tensor | None:
        """The sum over tokens of u^T (g W), u what the norm's weight is multiplied by: (g^T u) * W over W's rows."""
        return None if self.gradient is None else (self.gradient * self.plain).sum(0)


def normed(hidden: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, W] over the root of their mean square, without a weight; and the inverse root [n, 1]."""
    inverse = inverse_root(hidden, epsilon)
    return hidden * inverse, inverse


def before_norm(gradient: torch.Tensor, unit: torch.Tensor, inverse: torch.Tensor) -> torch.Tensor:
    """The gradient of what was normed: r (g - u mean(g u)), u the normed states and r the inverse root."""
    gradient = gradient.float()
    mean = (gradient * unit).sum(1, keepdim=True).div_(-unit.shape[1])
    return torch.addcmul(gradient, unit, mean).mul_(inverse)


def normed_heads(
    hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, cos: torch.Tensor, sin: torch.Tensor, turned: int,
    *weights: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Heads [N, heads, D] of normed states [N, W], one a weight [heads * D, W]; the first `turned` are rotated.

    The norm's weight is [W], cos and sin are [N, 1, D].
    """
    return NormedHeads.apply(hidden, weight, epsilon, cos, sin, turned, *weights)


def gated_end(
    hidden: torch.Tensor, attended: torch.Tensor, weight: torch.Tensor, epsilon: float,
    out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The rest of a layer after attention, [N, W]: h = hidden + out(attended), then h + down(silu(gate(n)) * up(n)),
    n the norm of h (Shazeer 2020, SwiGLU).
    """
    # a function is told of weights that learn, but not whether gradients are wanted
    keeps = torch.is_grad_enabled()
    return GatedEnd.apply(hidden, attended, weight, epsilon, out, gate, up, down, keeps)


def working_type() -> torch.dtype:
    """What products are computed in: fp32, or bf16 under autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


class NormedHeads(torch.autograd.Function):
    """`normed_heads`."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, epsilon: float, cos: torch.Tensor, sin: torch.Tensor,
        turned: int, *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:  # fmt: skip
        """Keeps what came in."""
        dtype = working_type()
        with torch.autocast("cpu", enabled=False):
            matrix, width = Matrix(weights, dtype, weight), cos.shape[-1]
            found = [hidden.new_empty(len(hidden), size // width, width) for size in matrix.sizes]
            for part in blocks(len(hidden), dtype):
                heads = matrix.of(normed(hidden[part], epsilon)[0]).split(matrix.sizes, 1)
                for number, (own, out) in enumerate(zip(heads, found, strict=True)):
                    own = own.unflatten(1, (-1, width))
                    if number < turned:
                        torch.mul(own, cos[part], out=out[part]).addcmul_(own.roll(width // 2, -1), sin[part])
                    else:
                        out[part] = own
        ctx.save_for_backward(hidden, weight, cos, sin, *weights)
        ctx.epsilon, ctx.turned, ctx.dtype = epsilon, turned, dtype
        return tuple(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Turned back, and joined block by block."""
        hidden, weight, cos, sin, *weights = ctx.saved_tensors
        matrix = Matrix(weights, ctx.dtype, weight, any(ctx.needs_input_grad[6:]) or ctx.needs_input_grad[1])
        of_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        for part in blocks(len(hidden), ctx.dtype):
            unit, inverse = normed(hidden[part], ctx.epsilon)
            heads = [
                _turned_back(own[part], cos[part], sin[part]) if number < ctx.turned else own[part]
                for number, own in enumerate(gradients)
            ]
            joined = torch.cat([own.flatten(1) for own in heads], 1)
            matrix.learn(joined, unit)
            if of_hidden is not None:
                of_hidden[part] = before_norm(matrix.back(joined), unit, inverse)
        return of_hidden, matrix.gradient_of_norm(), None, None, None, None, *matrix.gradients()


def _turned_back(gradient: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The gradient before a rotation x cos + roll(x) sin, of that after it."""
    return torch.addcmul((gradient * sin).roll(gradient.shape[-1] // 2, -1), gradient, cos)


class GatedEnd(torch.autograd.Function):
    """`gated_end`."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, attended: torch.Tensor, weight: torch.Tensor, epsilon: float,
        out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, keeps: bool,
    ) -> torch.Tensor:  # fmt: skip
        """Keeps h, gate and up, block by block."""
        dtype, found, kept = working_type(), torch.empty_like(hidden), []
        with torch.autocast("cpu", enabled=False):
            outs, gates, downs = Matrix([out], dtype), Matrix([gate, up], dtype, weight), Matrix([down], dtype)
            for part in blocks(len(hidden), dtype):
                middle = torch.add(hidden[part], outs.of(attended[part]))
                joined = gates.of(normed(middle, epsilon)[0])
                opened, right = joined.chunk(2, 1)
                torch.add(middle, downs.of(F.silu(opened).mul_(right)), out=found[part])
                if keeps:
                    kept += [middle, joined]
        if keeps:
            ctx.save_for_backward(attended, weight, out, gate, up, down, *kept)
            ctx.epsilon, ctx.dtype = epsilon, dtype
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The chain rule from below, block by block."""
        attended, weight, out, gate, up, down, *kept = ctx.saved_tensors
        learns_norm, _, *learns = ctx.needs_input_grad[2:8]
        outs = Matrix([out], ctx.dtype, learns=learns[0])
        gates = Matrix([gate, up], ctx.dtype, weight, learns_norm or any(learns[1:3]))
        downs = Matrix([down], ctx.dtype, learns=learns[3])
        of_hidden, of_attended = torch.empty_like(gradient), torch.empty_like(attended)
        for number, part in enumerate(blocks(len(gradient), ctx.dtype)):
            middle, joined = kept[2 * number : 2 * number + 2]
            own, (left, right) = gradient[part], joined.chunk(2, 1)
            low = own.to(ctx.dtype)
            opened = F.silu(left)
            downs.learn(low, opened * right)
            of_product = downs.back(low)
            of_joined = torch.empty_like(joined)
            of_left, of_right = of_joined.chunk(2, 1)
            torch.mul(of_product, opened, out=of_right)
            torch.ops.aten.silu_backward.grad_input(of_product.mul_(right), left, grad_input=of_left)
            unit, inverse = normed(middle, ctx.epsilon)
            gates.learn(of_joined, unit)
            of_middle = torch.add(own, before_norm(gates.back(of_joined), unit, inverse), out=of_hidden[part])
            low = of_middle.to(ctx.dtype)
            outs.learn(low, attended[part])
            of_attended[part] = outs.back(low)
        weights = (*outs.gradients(), *gates.gradients(), *downs.gradients())
        return of_hidden, of_attended, gates.gradient_of_norm(), None, *weights, None
