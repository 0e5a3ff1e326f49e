"""A loss on log-probabilities of whole replies, and the implicit rewards that it compares."""

import torch

from preferences.config import LossConfig
from preferences.losses import SumAndCount, bon, dpo, ipo, kto, orpo, sft, simpo


def reply_sums(logprobs: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """[replies] sums of logprobs [tokens], reply after reply; lengths [replies] int64 add up to their number."""
    return torch.segment_reduce(logprobs, "sum", lengths=lengths)


def log_ratios(
    settings: LossConfig, policy: torch.Tensor, reference: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Log-ratios as the loss takes them: sums, or means a token; log-probabilities for a loss without a reference.

    All of one shape: summed log-probabilities of replies, and their numbers of tokens.
    """
    ratios = policy - reference if settings.has_reference else policy
    return ratios / lengths if settings.is_mean else ratios


def rewards(settings: LossConfig, ratios: torch.Tensor) -> torch.Tensor:
    """Implicit rewards: beta times the log-ratios; of orpo, which has no beta, mean log-probabilities."""
    return ratios if settings.loss == "orpo" else settings.strength * ratios


def pair_loss(
    settings: LossConfig, policy: torch.Tensor, reference: torch.Tensor, lengths: torch.Tensor, preference: torch.Tensor
) -> SumAndCount:
    """The loss of pairs, whose replies are [pairs, 2], chosen first; preference: [pairs]."""
    chosen, rejected = log_ratios(settings, policy, reference, lengths).unbind(1)
    means, beta = (policy / lengths)[:, 0], settings.strength
    if settings.loss == "orpo":
        return orpo(chosen, rejected, settings.odds_weight)
    if settings.loss == "bon":
        return bon(chosen, rejected, means, preference, beta, settings.sft_share)
    if settings.loss == "dpo":
        total, count = dpo(chosen, rejected, beta, settings.label_smoothing)
    elif settings.loss == "ipo":
        total, count = ipo(chosen, rejected, beta)
    else:
        assert settings.loss == "simpo"
        total, count = simpo(chosen, rejected, beta, settings.gamma)
    return total + settings.sft_weight * sft(means)[0], count


def thumb_loss(settings: LossConfig, ratios: torch.Tensor, liked: torch.Tensor, baseline: torch.Tensor) -> SumAndCount:
    """The loss of replies with summed log-ratios [replies], liked [replies] bool; baseline: z0."""
    return kto(ratios, liked, baseline, settings.strength, settings.liked_weight, settings.disliked_weight)
