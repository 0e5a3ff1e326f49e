"""The loss by a teacher's probabilities, as (sum, count): the caller divides by the count over ranks and accumulation.

It takes the logits of the places that count alone, [places, vocabulary], beside their targets. The usual cross entropy
needs no logits: lmgym/models/forward/logprobs.py.
"""

import torch
import torch.nn.functional as F

LEAST_LOG = -100.0

SumAndCount = tuple[torch.Tensor, torch.Tensor]


def soft_binary_entropy(logits: torch.Tensor, targets: torch.Tensor, probabilities: torch.Tensor) -> SumAndCount:
    """Binary cross entropy between the model's probability p of each target token and the given one q, in nats.

    -(q log p + (1 - q) log(1 - p)), each logarithm clamped at -100, of targets[places] and probabilities[places] under
    logits[places, vocabulary]. With z the target's logit less the log-sum-exp of all others, p = sigmoid(z): so log p
    and log(1 - p) are exact where p rounds to 0 or 1. Computed in fp32.
    """
    logits, q = logits.float(), probabilities.float()
    target = logits.gather(1, targets[:, None])[:, 0]
    others = logits.scatter(1, targets[:, None], -torch.inf).logsumexp(1)
    z = target - others
    log_p, log_rest = F.logsigmoid(z).clamp(min=LEAST_LOG), F.logsigmoid(-z).clamp(min=LEAST_LOG)
    return -(q * log_p + (1 - q) * log_rest).sum(), torch.full((), len(targets), device=targets.device)
