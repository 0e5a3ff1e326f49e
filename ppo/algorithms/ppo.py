"""PPO: rewards with a KL penalty, advantages by GAE, clipped policy and value losses."""

from collections.abc import Callable

import torch

from lmgym.distributed.ranks import sum_over_ranks
from lmgym.scoring.moments import moments_of
from ppo.algorithms.advantages import gae, kl_rewards, masked_sums, whiten
from ppo.algorithms.losses import MOST_LOG_RATIO, clip_fraction, policy_loss, value_loss
from ppo.config import MethodConfig
from ppo.learner import LossFunction, LossTerms, Recorded
from ppo.rollouts import Rollouts

EstimateAdvantages = Callable[[Rollouts, float], torch.Tensor]
"""fills in advantages and returns, given the KL coefficient; the rewards [M], KL penalty included. Collective"""


def ppo_advantages(method: MethodConfig) -> EstimateAdvantages:
    """The estimator of PPO."""

    def estimate(rollouts: Rollouts, kl_coef: float) -> torch.Tensor:
        mask = rollouts.mask
        logprobs, reference = rollouts.padded(rollouts.old_logprobs), rollouts.padded(rollouts.reference_logprobs)
        rewards = kl_rewards(logprobs, reference, rollouts.padded(rollouts.scores), mask, kl_coef)
        values = rollouts.padded(rollouts.values)
        advantages, returns = gae(rewards, values, mask, method.gamma, method.lam, rollouts.bootstrap)
        if method.whiten:
            with_loss = mask & torch.from_numpy(rollouts.has_reward)[:, None]
            sums = sum_over_ranks(masked_sums(advantages, with_loss))
            advantages = whiten(advantages, mask, moments=moments_of(sums) if sums[2] else (0.0, 1.0))
        rollouts.advantages, rollouts.returns = rollouts.flat(advantages), rollouts.flat(returns)
        return rollouts.flat(rewards)

    return estimate


def ppo_loss(method: MethodConfig) -> LossFunction:
    """The loss of PPO: clipped policy loss + vf_coef * clipped value loss."""

    def loss(logprobs: torch.Tensor | None, values: torch.Tensor | None, recorded: Recorded) -> LossTerms:
        policy = value = None
        metrics: dict[str, torch.Tensor] = {}
        if logprobs is not None:
            given = (logprobs, recorded.logprobs, recorded.advantages, recorded.mask, method.cliprange)
            policy, _ = policy_loss(*given)
            metrics |= {"policy_loss": policy.detach(), "clip_fraction": clip_fraction(*given)[0]}
            metrics |= ratio_metrics(logprobs, recorded)
        if values is not None:
            value_sum, _ = value_loss(values, recorded.values, recorded.returns, recorded.mask, method.cliprange_value)
            metrics["value_loss"] = value_sum.detach()
            value = method.vf_coef * value_sum
        return LossTerms(policy, value, metrics)

    return loss


@torch.no_grad()
def ratio_metrics(logprobs: torch.Tensor, recorded: Recorded) -> dict[str, torch.Tensor]:
    """Sums over the tokens of the ratio p / p_old and of the k3 estimate of KL(old || new), in nats (Schulman 2020)."""
    log_ratio = torch.where(recorded.mask, logprobs - recorded.logprobs, 0.0).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
    return {"approx_kl": (log_ratio.expm1() - log_ratio).sum(), "ratio": (log_ratio.exp() * recorded.mask).sum()}
