"""Losses over next tokens, each as (sum, count): the caller divides by the count over ranks and accumulation.

The `*_at` functions take logits of chosen places, [places, vocabulary], already beside their targets; the others take
whole batches with unshifted targets, shift, choose the places that count, and call them. Nothing of the size of the
vocabulary is made for a place that does not count.
"""

import torch
import torch.nn.functional as F

IGNORED = -100
LEAST_LOG = -100.0

SumAndCount = tuple[torch.Tensor, torch.Tensor]


def next_token_loss(logits: torch.Tensor, targets: torch.Tensor) -> SumAndCount:
    """Cross entropy of next tokens, in nats.

    logits: [batch, time, vocabulary]; targets: [batch, time] ids, unshifted, -100 where ignored: `logits[:, t]`
    predicts `targets[:, t + 1]`.
    """
    counts = targets[:, 1:] != IGNORED
    return next_token_loss_at(logits[:, :-1][counts], targets[:, 1:][counts])


def soft_binary_entropy(logits: torch.Tensor, target_tokens: torch.Tensor, target_probs: torch.Tensor) -> SumAndCount:
    """Binary cross entropy between the model's probability p of each target token and the given one q.

    -(q log p + (1 - q) log(1 - p)) in nats, each logarithm clamped at -100. logits: [batch, time, vocabulary];
    target_tokens and target_probs: [batch, time], unshifted, -100 where ignored: `logits[:, t]` predicts
    `target_tokens[:, t + 1]`.
    """
    counts = (target_tokens[:, 1:] != IGNORED) & (target_probs[:, 1:] != IGNORED)
    return soft_binary_entropy_at(logits[:, :-1][counts], target_tokens[:, 1:][counts], target_probs[:, 1:][counts])


def next_token_loss_at(logits: torch.Tensor, targets: torch.Tensor) -> SumAndCount:
    """Cross entropy of targets[places] under logits[places, vocabulary], computed in fp32."""
    return F.cross_entropy(logits.float(), targets, reduction="sum"), _count(targets)


def soft_binary_entropy_at(logits: torch.Tensor, targets: torch.Tensor, probabilities: torch.Tensor) -> SumAndCount:
    """`soft_binary_entropy` of targets[places] and probabilities[places] under logits[places, vocabulary].

    With z the target's logit less the log-sum-exp of all others, p = sigmoid(z): so log p and log(1 - p) are exact
    where p rounds to 0 or 1. Computed in fp32.
    """
    logits, q = logits.float(), probabilities.float()
    target = logits.gather(1, targets[:, None])[:, 0]
    others = logits.scatter(1, targets[:, None], -torch.inf).logsumexp(1)
    z = target - others
    log_p, log_rest = F.logsigmoid(z).clamp(min=LEAST_LOG), F.logsigmoid(-z).clamp(min=LEAST_LOG)
    return -(q * log_p + (1 - q) * log_rest).sum(), _count(targets)


def _count(targets: torch.Tensor) -> torch.Tensor:
    return torch.full((), len(targets), device=targets.device)
