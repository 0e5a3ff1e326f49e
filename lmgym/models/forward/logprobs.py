"""Log-probabilities of given tokens, from states behind the last norm, without all logits in memory at once.

The functions whose gradients are written here go over logits fewer times than torch's own; each stands beside torch's
own way in tests/unit/models/forward/test_logprobs.py. First derivatives only: a backward through a backward raises.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from lmgym.distributed.ranks import max_over_ranks
from lmgym.models.config_fields import vocabulary_size
from lmgym.models.forward.decoder import Decoder
from lmgym.models.parameters import is_sharded

CHUNK_LOGITS = 1 << 26  # logits of so many numbers at once
CACHED_LOGITS = 1 << 21  # 8 MiB of them stay in a processor's cache
FEWEST_ROWS, LEARNED_ROWS = 64, 256  # of a product by a large weight, and of one whose gradient it adds to


def token_logprobs(
    decoder: Decoder, normed: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities [M] in fp32 of targets [M] from states [M, W] behind the last norm, at a temperature.

    In chunks: logits of a large vocabulary are held for few tokens at a time. For a head that learns they are kept
    until the backward, or computed again in it; for a frozen one what the backward needs of them is. Collective where
    the head is sharded: a chunk is a call of its module, for which all ranks gather it, so all make as many.
    """
    vocabulary, head = vocabulary_size(decoder.model.config), decoder.model.get_output_embeddings()
    most, sharded = max(1, CHUNK_LOGITS // vocabulary), is_sharded(head)
    if not len(targets) and not sharded:
        return normed.new_zeros(0, dtype=torch.float32) + 0 * normed.sum().float()
    learns = torch.is_grad_enabled() and any(p.requires_grad for p in head.parameters())
    on_cpu = normed.device.type == "cpu"
    if decoder.anatomy.plain_head and type(head) is nn.Linear and not sharded and (on_cpu or not learns):
        in_cache = max(LEARNED_ROWS if learns else FEWEST_ROWS, CACHED_LOGITS // vocabulary)
        rows = min(most, in_cache) if on_cpu else most
        kept = most if learns else len(targets)

        def read(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return head_logprobs(states, head.weight, head.bias, wanted, temperature, rows)
    else:
        kept = most

        def read(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
            return _logprobs(decoder, states, wanted, temperature)

    number = max(1, -(-len(targets) // kept))
    if sharded:
        number = int(max_over_ranks(torch.tensor(number)))
    if number == 1:
        return read(normed, targets)
    pieces, again = [], torch.is_grad_enabled()
    for chunk, wanted in zip(_parts(normed, kept, number), _parts(targets, kept, number), strict=True):
        pieces.append(checkpoint(read, chunk, wanted, use_reentrant=False) if again else read(chunk, wanted))
    return torch.cat(pieces)


def _parts(states: torch.Tensor, size: int, number: int) -> list[torch.Tensor]:
    """So many of a size, the last ones empty where there are no more."""
    found = list(states.split(size))
    return found + [states[:0]] * (number - len(found))


def _logprobs(decoder: Decoder, normed: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = decoder.logits(normed)
    if temperature not in (0, 1):
        logits = logits.float() / temperature
    return TargetLogprobs.apply(logits, targets)


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
                inputs = states[part].to(dtype)
                if rounds:
                    rounded = narrow[part] if learns else narrow[: len(inputs)]
                    logits = wide[: len(inputs)].copy_(_product_into(rounded, inputs, low, low_bias))
                else:
                    rounded = logits = F.linear(inputs, low, low_bias)
                logits = logits if temperature in (0, 1) else logits.div_(temperature)
                found[part] = _logprobs_of(logits, targets[part])
                if rounds:
                    rounded.copy_(logits)
                elif learns:
                    every.append(logits)
                if slopes is not None:
                    slopes[part] = F.linear(rounded, low.t())
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
                of_weight = _added_product(of_weight, every, (states[part] * scale[part]).to(every.dtype))
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


def _added_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left^T right in fp32, [a, b] of [n, a] and [n, b]: what a block adds to a weight's gradient."""
    if total is not None and left.dtype == total.dtype:
        return total.addmm_(left.t(), right)
    found = torch.mm(left.t(), right)
    return found.float() if total is None else total.add_(found)
