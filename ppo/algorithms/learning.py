"""A method as the loop uses it: its estimator of advantages, and its loss function."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from lmgym.distributed.ranks import all_gather_objects, rank, sum_over_ranks
from lmgym.scoring.moments import moments_of
from ppo.algorithms.advantages import gae, masked_sums, sum_of_normalized, whiten
from ppo.algorithms.kl import kl_estimates, kl_rewards
from ppo.algorithms.losses import MOST_LOG_RATIO, clipped_loss, ratios_of_replies, value_loss
from ppo.algorithms.masking import log_ratio
from ppo.algorithms.methods import Algorithm, Outcome
from ppo.config import CriticConfig, MethodConfig
from ppo.learner import LossFunction, LossTerms, Recorded
from ppo.rollouts import Rollouts

EstimateAdvantages = Callable[[Rollouts, float], torch.Tensor]
"""fills in advantages, and returns for a critic, given the KL coefficient; the rewards [M], with a KL penalty that is
in them. Collective"""


def advantage_estimator(algorithm: Algorithm, by_turn: bool, critic: CriticConfig) -> EstimateAdvantages:
    """The estimator of a method: by its critic's values, or by episodes or turns of a group."""

    def estimate(rollouts: Rollouts, kl_coef: float) -> torch.Tensor:
        rewards, outcome = rollouts.padded(rollouts.scores), algorithm.outcome
        if kl_coef and algorithm.kl_in == "reward":
            logprobs, reference = rollouts.padded(rollouts.old_logprobs), rollouts.padded(rollouts.reference_logprobs)
            rewards = kl_rewards(logprobs, reference, rewards, rollouts.mask, kl_coef, algorithm.kl_estimator)
        if rollouts.parts is not None:
            outcome = partial(sum_of_normalized, weights=rollouts.parts.weights)
        if outcome is None:
            estimate_by_critic(critic, rollouts, rewards)
        elif algorithm.per_token:
            following = rewards.flip(1).cumsum(1).flip(1)
            of_token = rollouts.flat(following).double()
            groups = np.repeat(rollouts.group_of_episode[rollouts.episode_of_row], rollouts.reply_lengths)
            known = rollouts.has_reward[rollouts.episode_of_row].repeat(rollouts.reply_lengths)
            rollouts.advantages = _over_ranks(outcome, of_token, groups, known)
        else:
            estimate_by_outcome(outcome, by_turn, rollouts, rollouts.flat(rewards))
        rollouts.kl_coef = kl_coef if algorithm.kl_in == "loss" else 0.0
        found = rollouts.flat(rewards)
        if rollouts.parts is not None:
            found[rollouts.row_starts[1:] - 1] += rollouts.parts.sums.float()
        return found

    return estimate


def estimate_by_critic(critic: CriticConfig, rollouts: Rollouts, rewards: torch.Tensor) -> None:
    """Fill in advantages and returns from rewards [E, T], by GAE."""
    mask, values = rollouts.mask, rollouts.padded(rollouts.values)
    of_policy: float | torch.Tensor = critic.lam
    if critic.lam_adaptive > 0:  # Yue et al. 2025 (VAPO), eq. 8
        of_policy = (1 - 1 / (critic.lam_adaptive * mask.sum(1).clamp(min=1))).clamp(min=0)
    of_value = critic.lam if critic.lam_value is None else critic.lam_value
    advantages, returns = gae(rewards, values, mask, critic.gamma, of_policy, rollouts.bootstrap)
    if critic.lam_adaptive > 0 or of_value != of_policy:
        _, returns = gae(rewards, values, mask, critic.gamma, of_value, rollouts.bootstrap)
    if critic.whiten:
        with_loss = mask & torch.from_numpy(rollouts.has_reward)[:, None]
        sums = sum_over_ranks(masked_sums(advantages, with_loss))
        advantages = whiten(advantages, mask, moments=moments_of(sums) if sums[2] else (0.0, 1.0))
    rollouts.advantages, rollouts.returns = rollouts.flat(advantages), rollouts.flat(returns)


def estimate_by_outcome(outcome: Outcome, by_turn: bool, rollouts: Rollouts, rewards: torch.Tensor) -> None:
    """Fill in advantages from rewards [M]: of an episode, for all its tokens; or of each turn, with those after it,
    compared with the same turn of the group's other episodes. Collective.
    """
    of_row, episode = rollouts.row_sums(rewards.double()), rollouts.episode_of_row
    if rollouts.parts is not None:
        of_row = torch.cat([of_row[:, None], rollouts.parts.rewards], 1)

    def following(numbers: torch.Tensor) -> torch.Tensor:
        """[E], or [R] by turn: the sums of [R] over an episode, or over a row and those after it."""
        totals = numbers.new_zeros(rollouts.episodes, *numbers.shape[1:])
        totals.index_add_(0, torch.from_numpy(episode), numbers)
        # an episode's rows are contiguous: what follows a row is the total less what came before it
        before = numbers.cumsum(0) - numbers
        return totals[episode] - (before - before[first]) if by_turn else totals

    first = torch.from_numpy(np.searchsorted(episode, episode))
    counts = following((~of_row.isnan()).double())
    found = torch.where(counts > 0, following(of_row.nan_to_num(0.0)), torch.nan)
    if not by_turn:
        advantages = _over_ranks(outcome, found, rollouts.group_of_episode, rollouts.has_reward)[episode]
    else:
        turn = np.arange(len(episode)) - first.numpy()
        groups = np.stack([rollouts.group_of_episode[episode], turn], 1)
        advantages = _over_ranks(outcome, found, groups, rollouts.has_reward[episode])
    rollouts.advantages = advantages.repeat_interleave(torch.from_numpy(rollouts.reply_lengths))


def _over_ranks(outcome: Outcome, rewards: torch.Tensor, groups: np.ndarray, known: np.ndarray) -> torch.Tensor:
    """Advantages [n], in fp32, of this rank's rewards [n] or [n, K] beside those of all ranks: groups may be split.

    Collective.
    """
    failed = torch.from_numpy(~known).view(-1, *[1] * (rewards.dim() - 1))
    rewards = rewards.masked_fill(failed, torch.nan)
    gathered = all_gather_objects((rewards.numpy(), groups))
    everything = torch.from_numpy(np.concatenate([of_rank for of_rank, _ in gathered]))
    _, numbers = np.unique(np.concatenate([of_rank for _, of_rank in gathered]), axis=0, return_inverse=True)
    start = sum(len(of_rank) for of_rank, _ in gathered[: rank()])
    found = outcome(everything, torch.from_numpy(numbers.reshape(-1)))
    return found[start : start + len(rewards)].float()


def loss_function(algorithm: Algorithm, method: MethodConfig, critic: CriticConfig) -> LossFunction:
    """The loss of a method: of the policy, with a KL and an entropy bonus; and vf_coef * the value loss."""
    token_loss = algorithm.token_loss or clipped_loss

    def of_policy(logprobs: torch.Tensor, entropies: torch.Tensor | None, r: Recorded):
        log_ratios = log_ratio(logprobs, _old(logprobs, r), r.mask)
        if algorithm.importance_sampling_level == "sequence":
            log_ratios = ratios_of_replies(log_ratios, r.rows, r.replies)
        losses, clipped = token_loss(
            logprobs, log_ratios, r.advantages, r.mask, algorithm.epsilon_low, algorithm.epsilon_high, method.delta
        )
        losses = losses * r.correction
        if r.kl_coef:
            assert r.reference is not None
            losses = losses + r.kl_coef * kl_estimates(logprobs, r.reference, r.mask, algorithm.kl_estimator)
        if entropies is not None:
            losses = losses - method.entropy_coef * torch.where(r.mask, entropies, 0.0)
        policy = (losses * r.weights).sum()
        return policy, {"policy_loss": policy.detach(), "clip_fraction": clipped.sum(), **ratio_metrics(logprobs, r)}

    def loss(
        logprobs: torch.Tensor | None,
        values: torch.Tensor | None,
        recorded: Recorded,
        entropies: torch.Tensor | None = None,
    ) -> LossTerms:
        policy = value = None
        metrics: dict[str, torch.Tensor] = {}
        if logprobs is not None:
            policy, metrics = of_policy(logprobs, entropies, recorded)
        if values is not None:
            value_sum, _ = value_loss(values, recorded.values, recorded.returns, recorded.mask, critic.cliprange_value)
            metrics["value_loss"] = value_sum.detach()
            value = critic.vf_coef * value_sum
        return LossTerms(policy, value, metrics)

    return loss


@torch.no_grad()
def ratio_metrics(logprobs: torch.Tensor, recorded: Recorded) -> dict[str, torch.Tensor]:
    """Sums over the tokens of the ratio p / p_old and of the k3 estimate of KL(old || new), in nats (Schulman 2020)."""
    x = log_ratio(logprobs, _old(logprobs, recorded), recorded.mask).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
    return {"approx_kl": (x.expm1() - x).sum(), "ratio": (x.exp() * recorded.mask).sum()}


def _old(logprobs: torch.Tensor, recorded: Recorded) -> torch.Tensor:
    return logprobs.detach() if recorded.logprobs is None else recorded.logprobs
