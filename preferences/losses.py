"""Losses over preferences, each as (sum, count): the caller divides by the count over ranks and accumulation.

A log-ratio is log pi(reply | prompt) - log ref(reply | prompt). Whether log-probabilities are summed over a reply's
tokens (the end-of-sequence token is one) or averaged is said of each loss. All arguments are [pairs] or [replies] in
fp32; losses are in nats.
"""

import math

import torch
import torch.nn.functional as F

SumAndCount = tuple[torch.Tensor, torch.Tensor]
MOST_MEAN_LOGPROB = -1e-6  # at 0 the odds are infinite


def dpo(chosen: torch.Tensor, rejected: torch.Tensor, beta: float, label_smoothing: float = 0.0) -> SumAndCount:
    """-log sigmoid(d), d = beta (chosen - rejected), of summed log-ratios (Rafailov et al. 2023, 2305.18290, eq. 7).

    With smoothing e the label is wrong with probability e: (1 - e) and e weigh the losses at d and at -d (cDPO,
    Mitchell 2023).
    """
    margin = beta * (chosen - rejected)
    return _summed(-(1 - label_smoothing) * F.logsigmoid(margin) - label_smoothing * F.logsigmoid(-margin))


def ipo(chosen: torch.Tensor, rejected: torch.Tensor, beta: float) -> SumAndCount:
    """(chosen - rejected - 1 / (2 beta))^2 of mean log-ratios a token (Azar et al. 2023, 2310.12036, eq. 17).

    The mean instead of the sum is the authors' later advice, and what TRL computes.
    """
    return _summed((chosen - rejected - 1 / (2 * beta)).square())


def kto(
    ratios: torch.Tensor,
    liked: torch.Tensor,
    baseline: torch.Tensor,
    beta: float,
    liked_weight: float = 1.0,
    disliked_weight: float = 1.0,
) -> SumAndCount:
    """w (1 - sigmoid(+-beta (ratio - z0))) of summed log-ratios, + for liked replies (Ethayarajh et al. 2024, eq. 8).

    liked: [replies] bool; `baseline` is z0 (see `kto_baseline`).
    """
    signs = torch.where(liked, 1.0, -1.0)
    weights = torch.where(liked, liked_weight, disliked_weight)
    return _summed(weights * torch.sigmoid(-signs * beta * (ratios - baseline)))


def kto_baseline(ratios_and_count: torch.Tensor) -> torch.Tensor:
    """z0 of KTO: the mean log-ratio of prompts with other prompts' replies, an estimate of the KL, at least 0.

    [2]: the sum of summed log-ratios and their number, over all ranks.
    """
    total, count = ratios_and_count.unbind()
    return (total / count.clamp(min=1)).clamp(min=0).float()


def simpo(chosen: torch.Tensor, rejected: torch.Tensor, beta: float, gamma: float) -> SumAndCount:
    """-log sigmoid(beta (chosen - rejected) - gamma) of mean log-probabilities a token (Meng et al. 2024)."""
    return _summed(-F.logsigmoid(beta * (chosen - rejected) - gamma))


def orpo(chosen: torch.Tensor, rejected: torch.Tensor, weight: float) -> SumAndCount:
    """-chosen - weight log sigmoid(log odds ratio), of mean log-probabilities a token (Hong et al. 2024, 2403.07691).

    The odds of a reply are p / (1 - p), p = exp(mean log-probability).
    """
    log_odds_ratio = _log_odds(chosen) - _log_odds(rejected)
    return _summed(-chosen - weight * F.logsigmoid(log_odds_ratio))


def bon(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    chosen_logprobs: torch.Tensor,
    preference: torch.Tensor,
    beta: float,
    alpha: float,
) -> SumAndCount:
    """alpha (-log pi(chosen)) + (1 - alpha) (preference DPO + (1 - preference) reverse DPO), of means a token.

    chosen, rejected: mean log-ratios; chosen_logprobs: mean log-probabilities; preference: the probability that the
    chosen reply is the better one (best-of-n distillation of the debate project).
    """
    margin = beta * (chosen - rejected)
    soft = -preference * F.logsigmoid(margin) - (1 - preference) * F.logsigmoid(-margin)
    return _summed(-alpha * chosen_logprobs + (1 - alpha) * soft)


def sft(chosen: torch.Tensor) -> SumAndCount:
    """The SFT term: -log pi of the chosen replies, a mean over each one's tokens (Pang et al. 2024, 2404.19733, eq. 2).

    A mean over the tokens of a batch would depend on how an update is cut into micro-batches.
    """
    return _summed(-chosen)


def _log_odds(mean_logprobs: torch.Tensor) -> torch.Tensor:
    """log(p / (1 - p)) of log p."""
    log_p = mean_logprobs.clamp(max=MOST_MEAN_LOGPROB)
    near_one = log_p > -math.log(2)
    # each form where it is exact; the other's argument is replaced, as its gradient would be NaN
    log_rest = torch.where(
        near_one,
        torch.log(-torch.expm1(log_p.masked_fill(~near_one, -1.0))),
        torch.log1p(-torch.exp(log_p.masked_fill(near_one, -1.0))),
    )
    return log_p - log_rest


def _summed(losses: torch.Tensor) -> SumAndCount:
    return losses.sum(), torch.full((), len(losses), device=losses.device)
