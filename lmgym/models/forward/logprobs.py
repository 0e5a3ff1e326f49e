"""Log-probabilities of given tokens, from states after the last norm, without all logits in memory at once.

The autograd functions here read and write logits fewer times than torch's own operations; each is compared with torch's
in tests/unit/models/forward/test_logprobs.py. First derivatives only: a second backward raises.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from lmgym.distributed.ranks import max_over_ranks
from lmgym.models.config_fields import vocabulary_size
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.packed_rows import PackedRows
from lmgym.models.forward.structure import replaced_forwards
from lmgym.models.memory import CHUNK_LOGITS
from lmgym.models.parameters import is_sharded

CACHED_LOGITS = 1 << 21  # 8 MiB, which stay in a processor's cache
FEWEST_ROWS, LEARNED_ROWS = 64, 256  # of a product with a frozen head, and with one whose gradient it adds to


def policy_logprobs(
    decoder: Decoder,
    normed: torch.Tensor,
    rows: PackedRows,
    targets: torch.Tensor,
    temperature: float = 1.0,
    entropies: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(log-probabilities, and, if asked for, entropies) of targets [M], or of the actions that `rows` choose [R]."""
    if rows.choices is not None:
        of_tokens = token_logprobs(decoder, normed, targets)
        logprobs, spread = rows.choices.logprobs_and_entropies(of_tokens, temperature)
        return logprobs, spread if entropies else None
    if entropies:
        return logprobs_and_entropies(decoder, normed, targets, temperature)
    return token_logprobs(decoder, normed, targets, temperature), None


def token_logprobs(
    decoder: Decoder, normed: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities [M] in fp32 of targets [M] from states [M, W] after the last norm: of `logprobs_and_hits`."""
    return logprobs_and_hits(decoder, normed, targets, temperature)[0]


def logprobs_and_hits(
    decoder: Decoder, normed: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> torch.Tensor:
    """[2, M] in fp32: log-probabilities of targets [M] at a temperature, and 1 where none is likelier, else 0.

    From states [M, W] after the last norm. Computed in chunks, so that the logits of a large vocabulary are held for
    few tokens at a time. For a trained head the logits are kept until the backward or recomputed in it; for a frozen
    one on a CPU only the gradient of the states is kept. On a GPU the model's own head computes them, with gradients
    and without, as in sampling: in bf16 another rounding of the logits is .016 nats, and the first ratio would not be
    1. Collective if the head is sharded: all ranks gather it, once in each direction, also those without tokens; or
    once a chunk where logits are not the head's output, so all compute equally many chunks.
    """
    vocabulary, head = vocabulary_size(decoder.model.config), decoder.model.get_output_embeddings()
    most, sharded = max(1, CHUNK_LOGITS // vocabulary), is_sharded(head)
    if not len(targets) and not sharded:
        return normed.new_zeros(2, 0, dtype=torch.float32) + 0 * normed.sum().float()
    on_cpu = normed.device.type == "cpu"
    if not (decoder.structure.plain_head and type(head) is nn.Linear and (on_cpu or sharded)):
        compute = partial(_model_logprobs, decoder, temperature=temperature)
        return _in_chunks(compute, normed, targets, most, sharded)
    learns = torch.is_grad_enabled() and any(p.requires_grad for p in head.parameters())
    fewest = max(LEARNED_ROWS if learns else FEWEST_ROWS, CACHED_LOGITS // vocabulary)
    rows = min(most, fewest) if on_cpu else most

    def of_head(states: torch.Tensor) -> torch.Tensor:
        return head_logprobs(states, targets, head.weight, head.bias, temperature, rows, len(targets) <= most)

    if not sharded:
        return of_head(normed)
    # ZeRO-3's hooks gather a module's weights once a call and once in its backward
    with replaced_forwards({head: of_head}):
        return head(normed)


def logprobs_and_entropies(
    decoder: Decoder, normed: torch.Tensor, targets: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs`, and the entropies [M] in nats of the distributions they are from, both with gradients."""
    head, size = decoder.model.get_output_embeddings(), max(1, CHUNK_LOGITS // vocabulary_size(decoder.model.config))

    def compute(states: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        logits = decoder.logits(states).float()
        logprobs = torch.log_softmax(logits if temperature in (0, 1) else logits / temperature, -1)
        return torch.stack(
            [logprobs.gather(1, wanted[:, None])[:, 0], -(logprobs.exp() * logprobs.clamp(min=-1e9)).sum(-1)]
        )

    logprobs, entropies = _in_chunks(compute, normed, targets, size, is_sharded(head))
    return logprobs, entropies


def _in_chunks(compute: Any, normed: torch.Tensor, targets: torch.Tensor, size: int, sharded: bool) -> torch.Tensor:
    """compute(states, targets), for `size` tokens at a time, and recomputed in the backward if there are more.

    Collective if the head is sharded.
    """
    chunks = max(1, -(-len(targets) // size))
    if sharded:
        chunks = int(max_over_ranks(torch.tensor(chunks)))
    if chunks == 1:
        return compute(normed, targets)
    if torch.is_grad_enabled():
        compute = partial(checkpoint, compute, use_reentrant=False)
    pieces = zip(_split(normed, size, chunks), _split(targets, size, chunks), strict=True)
    return torch.cat([compute(states, wanted) for states, wanted in pieces], -1)


def _split(tensor: torch.Tensor, size: int, number: int) -> list[torch.Tensor]:
    """`number` chunks of a size, the last ones empty if there are no more rows."""
    found = list(tensor.split(size))
    return found + [tensor[:0]] * (number - len(found))


def _model_logprobs(decoder: Decoder, states: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = decoder.logits(states)
    if temperature not in (0, 1):
        logits = logits.float() / temperature
    return torch.stack(TargetLogprobs.apply(logits, targets))


class TargetLogprobs(torch.autograd.Function):
    """Log-probabilities and hits [M] in fp32 of targets [M] from logits [M, vocabulary], which it overwrites.

    One tensor serves as logits, probabilities and gradient: it is the largest in training, and a new one is zeroed by
    the kernel page by page, which took four times as long as the softmax in bf16. So a second backward raises.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the probabilities, minus 1 at the target, in the dtype of the logits."""
        found, hits = logits.new_empty(2, len(targets), dtype=torch.float32).unbind()
        for part in _cache_sized(logits):
            probabilities = logits[part].float()
            found[part], hits[part] = _softmax_in_place(probabilities, targets[part])
            if probabilities.dtype != logits.dtype:
                logits[part] = probabilities
        ctx.save_for_backward(logits.detach())
        ctx.mark_non_differentiable(hits)
        return found, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor, None]:
        """d log p(target) / d logits is 1 at the target, minus the probabilities."""
        [probabilities] = ctx.saved_tensors
        for part in _cache_sized(probabilities):
            scale = -gradient[part, None]
            if probabilities.dtype == torch.float32:
                probabilities[part].mul_(scale)
            else:  # a product of two dtypes would allocate a third tensor
                probabilities[part] = probabilities[part].float().mul_(scale)
        return probabilities, None


def _cache_sized(logits: torch.Tensor) -> list[slice]:
    """Slices of the rows of [M, vocabulary] that fit a CPU's cache; one slice on a GPU."""
    rows = max(1, CACHED_LOGITS // logits.shape[1]) if logits.device.type == "cpu" else max(1, len(logits))
    return _slices(len(logits), rows)


def _slices(length: int, size: int) -> list[slice]:
    """At least one: a rank without tokens has a gradient too, of 0, for which others wait under ZeRO-3."""
    return [slice(start, start + size) for start in range(0, max(1, length), size)]


def _softmax_in_place(logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities [M] of targets [M], and where they are the largest; logits become probabilities.

    Logits are [M, vocabulary] in fp32, and 1 is subtracted from the probability of the target.

    log p = logit - largest + log(p of the largest), which needs neither a log-softmax nor a logsumexp. The 1 is
    subtracted in fp32, before anything is rounded, so that nothing cancels near certainty.
    """
    targets = targets[:, None]
    chosen, largest = logits.gather(1, targets)[:, 0], logits.amax(-1)
    torch.softmax(logits, -1, out=logits)
    found = chosen - largest + logits.amax(-1).log()
    logits.scatter_add_(1, targets, logits.new_full((1, 1), -1).expand(len(logits), 1))
    return found, chosen == largest


def head_logprobs(
    states: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    temperature: float,
    rows: int,
    keep: bool = True,
) -> torch.Tensor:
    """`logprobs_and_hits` [2, M] of targets [M], from states [M, W] by a head [vocabulary, W] with or without bias.

    Logits are held for `rows` tokens at a time; with `keep` those of all tokens are kept for a trained head's backward.
    """
    # within the function, needs_input_grad is true for a trained weight even without gradients
    grad_enabled = torch.is_grad_enabled()
    return torch.stack(HeadLogprobs.apply(states, weight, bias, targets, temperature, rows, grad_enabled, keep))


class HeadLogprobs(torch.autograd.Function):
    """`head_logprobs`.

    d log p(target) / d state is (W[target] - sum_v p_v W_v) / temperature, known as soon as the probabilities are: so
    the gradient of the states needs no logits in the backward (the order of work is that of Liger's cross entropy, Hsu
    et al. 2024, which needs the loss). For a trained head the probabilities are kept, or recomputed in the backward.
    Its gradient is added up in fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        rows: int,
        grad_enabled: bool,
        keep: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps the negated derivatives [M, W] by the states, and the probabilities, minus 1 at the target."""
        device = states.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
        learns = grad_enabled and any(ctx.needs_input_grad[1:3])
        found, hits = states.new_empty(2, len(targets), dtype=torch.float32).unbind()
        slopes = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        with torch.autocast(device, enabled=False):  # it would round the whole weight at each use
            low, low_bias = weight.to(dtype), None if bias is None else bias.to(dtype)
            head = _head(low, low_bias, temperature, learns and keep, len(targets), rows)
            for part in _slices(len(targets), rows):
                found[part], hits[part], probabilities = head.logprobs(states[part].to(dtype), targets[part], part)
                if slopes is not None:
                    slopes[part] = F.linear(probabilities, low.t())
        ctx.scale, ctx.temperature, ctx.dtype, ctx.device = -1 / (temperature or 1), temperature, dtype, device
        ctx.rows = max(1, len(targets)) if keep and dtype != torch.float32 else rows
        recomputed = (weight, bias, targets) if learns and not keep else (None, None, None)
        ctx.save_for_backward(states if learns else None, slopes, *recomputed, *head.kept)
        ctx.mark_non_differentiable(hits)
        return found, hits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The derivatives times each token's gradient, which scales the states: they are narrower than logits."""
        states, slopes, weight, bias, targets, *kept = ctx.saved_tensors
        scale = (gradient * ctx.scale)[:, None]
        of_weight = of_bias = head = None
        with torch.autocast(ctx.device, enabled=False):
            if weight is not None:
                low, low_bias = weight.to(ctx.dtype), None if bias is None else bias.to(ctx.dtype)
                head = _head(low, low_bias, ctx.temperature, False, len(targets), ctx.rows)
            for number, part in enumerate(_slices(len(gradient), ctx.rows) if states is not None else ()):
                probabilities = (
                    kept[number] if head is None else head.logprobs(states[part].to(ctx.dtype), targets[part], part)[-1]
                )
                if ctx.needs_input_grad[1]:
                    scaled = (states[part] * scale[part]).to(probabilities.dtype)
                    of_weight = _added_product(of_weight, probabilities, scaled)
                if ctx.needs_input_grad[2]:
                    added = torch.mv(probabilities.t(), scale[part, 0].to(probabilities.dtype))
                    of_bias = added.float() if of_bias is None else of_bias.add_(added)
        of_states = slopes * scale.to(slopes.dtype) if ctx.needs_input_grad[0] else None
        return of_states, of_weight, of_bias, *[None] * 5


def _head(
    weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, keep: bool, tokens: int, rows: int
) -> "_Float32Head | _RoundedHead":
    if weight.dtype == torch.float32:
        return _Float32Head(weight, bias, temperature, keep)
    return _RoundedHead(weight, bias, temperature, keep, tokens, rows)


class _Float32Head:
    """A head in fp32, whose probabilities are kept chunk by chunk."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, keep: bool) -> None:
        self.weight, self.bias, self.temperature, self.keep = weight, bias, temperature, keep
        self.kept: list[torch.Tensor] = []

    def logprobs(self, states: torch.Tensor, targets: torch.Tensor, part: slice) -> tuple[torch.Tensor, ...]:
        """Log-probabilities of a chunk's targets, its hits, and its probabilities, minus 1 at the target."""
        logits = _divided(F.linear(states, self.weight, self.bias), self.temperature)
        if self.keep:
            self.kept.append(logits)
        return *_softmax_in_place(logits, targets), logits


class _RoundedHead:
    """A head in 16 bits. Probabilities are computed in one fp32 buffer, which stays in the cache, and rounded.

    They are kept in a single tensor, so that the backward is one product.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, keep: bool, tokens: int, rows: int
    ) -> None:
        self.weight, self.bias, self.temperature, self.keep = weight, bias, temperature, keep
        at_once = min(rows, tokens)
        self.rounded = weight.new_empty(tokens if keep else at_once, len(weight))
        self.exact = weight.new_empty(at_once, len(weight), dtype=torch.float32)
        self.kept: Sequence[torch.Tensor] = [self.rounded] if keep else []

    def logprobs(self, states: torch.Tensor, targets: torch.Tensor, part: slice) -> tuple[torch.Tensor, ...]:
        """Log-probabilities of a chunk's targets, its hits, and its probabilities, minus 1 at the target."""
        rounded = self.rounded[part] if self.keep else self.rounded[: len(states)]
        if self.bias is None:
            torch.mm(states, self.weight.t(), out=rounded)
        else:
            torch.addmm(self.bias, states, self.weight.t(), out=rounded)
        exact = _divided(self.exact[: len(states)].copy_(rounded), self.temperature)
        return *_softmax_in_place(exact, targets), rounded.copy_(exact)


def _divided(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return logits if temperature in (0, 1) else logits.div_(temperature)


def _added_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left^T right in fp32, [a, b] of [n, a] and [n, b]: a chunk's part of a weight's gradient."""
    if total is not None and left.dtype == total.dtype:
        return total.addmm_(left.t(), right)
    found = torch.mm(left.t(), right)
    return found.float() if total is None else total.add_(found)
