"""The algorithm and its critic. Where a method has a value of its own, the field's default is None."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lmgym.config import First, Range
from lmgym.errors import MOST_SCORE, MOST_STEPS
from ppo.algorithms.methods import KLEstimator, MethodName

SamplerCorrection = Literal["none", "token_truncate", "sequence_mask", "geometric_mask"]
CAPS: dict[SamplerCorrection, float] = {
    "none": 1.0,
    "token_truncate": 2.0,
    "sequence_mask": 3.0,
    "geometric_mask": 1.1,
}
"""bounds of corrections, where sampler_cap is None"""


@dataclass(frozen=True)
class MethodConfig:
    """The algorithm. None: the method's own, see `--dry_run` and docs/methods.md."""

    method: Annotated[MethodName, First()] = "ppo"
    """ppo has a critic; the others compare the replies to one prompt, or all replies, with each other"""
    ppo_epochs: Annotated[int | None, Range(1, 1000, also=(None,))] = None
    """passes over an iteration's rollouts"""
    init_kl_coef: Annotated[float | None, Range(0, 1000, also=(None,))] = None
    """initial weight of the KL to the reference"""
    kl_in: Literal["reward", "loss"] | None = None
    """where the KL is: subtracted from the rewards, or added to the loss"""
    kl_estimator: KLEstimator | None = None
    """of the KL per token, x = log p - log p_ref: k1 is x, k2 x^2 / 2, k3 exp(-x) - 1 + x"""
    target: Annotated[
        float | None, Range(0, MOST_SCORE, above=True, also=(None,), hint="none keeps the coefficient fixed")
    ] = None
    """KL per reply, in nats, that the weight is adapted to; None: the weight is fixed"""
    horizon: Annotated[float, Range(0, 1e12, above=True, hint="10000 is usual")] = 10000.0
    """replies over which the weight adapts"""
    reference: str | None = None
    """folder or hub id of another reference, with the policy's vocabulary; None: the policy before step 1"""
    scale_rewards: Literal["group", "batch", "none"] | None = None
    """rewards, less their group's mean, are divided by the standard deviation of their group, or of all; or not"""
    credit: Literal["episode", "turn"] = "episode"
    """several turns: all are credited with the episode's rewards, or each with those from it on, compared with the
    group's same turn"""
    cliprange: Annotated[
        float | None, Range(0, 1000, above=True, infinite=True, also=(None,), hint="0.2 is usual, inf clips nothing")
    ] = None
    """sets epsilon_low and epsilon_high"""
    epsilon_low: Annotated[float | None, Range(0, 1, also=(None,), hint="0.2 is usual, 1 has no lower bound")] = None
    """the ratio p / p_old is clipped at 1 - epsilon_low"""
    epsilon_high: Annotated[float | None, Range(0, 1000, infinite=True, also=(None,), hint="0.2 is usual")] = None
    """and at 1 + epsilon_high"""
    delta: Annotated[float | None, Range(1, 1000, above=True, also=(None,), hint="3 to 10 is usual")] = None
    """dual clip: largest ratio of tokens with a negative advantage; None: no bound"""
    importance_sampling_level: Literal["token", "sequence"] | None = None
    """the ratio of each token, or the reply's geometric mean"""
    loss_aggregation: Literal["token", "sequence", "constant"] | None = None
    """the loss is a mean over tokens; over replies, of the mean over each one's tokens; or of their sum, divided by
    max_new_tokens"""
    entropy_coef: Annotated[float, Range(0, 1000)] = 0.0
    """weight of a bonus for the entropy of the policy's distributions"""
    max_refills: Annotated[int | None, Range(0, 1000, also=(None,))] = None
    """dynamic sampling: so many times, groups whose rewards are all equal are dropped and other prompts sampled"""
    percentile: Annotated[float | None, Range(0, 1, also=(None,), hint="0.7 to 0.95 is usual")] = None
    """rft: replies at or above this quantile of their group's rewards are learned, as in SFT"""
    sampler_correction: SamplerCorrection | None = None
    """weight in the loss for p_old / p_sampler: token_truncate, that of each token, at most sampler_cap; sequence_mask,
    that of each reply, without replies above sampler_cap; geometric_mask, none, without replies whose geometric mean is
    not within 1 / sampler_cap and sampler_cap; none. None: token_truncate with another engine or async_rollouts"""
    sampler_cap: Annotated[
        float | None, Range(1, 1000, also=(None,), hint="2 to 3 is usual, 1.1 of geometric_mask")
    ] = None
    """bound of the correction; None: 2 of token_truncate, 3 of sequence_mask, 1.1 of geometric_mask"""
    num_layers_unfrozen: Annotated[int, Range(1, 65_536, also=(-1,), hint="-1 trains all")] = -1
    """train only the top layers: those below are frozen and run once per iteration; -1: all"""
    stop_kl: Annotated[float, Range(0, MOST_SCORE, hint="0.02 to 0.1 is usual, 0 never ends epochs early")] = 0.0
    """end an iteration's epochs once the policy is this many nats per token from the one that sampled; 0: never"""


@dataclass(frozen=True)
class CriticConfig:
    """The critic of ppo, and its advantages."""

    critic: str = "head"
    """head: a new value head on the policy's trunk; else the folder of a reward model that the critic starts from, or
    `critic/` of an earlier run"""
    critic_learning_rate: Annotated[float, Range(0, 1)] = 0.0
    """peak learning rate of a value head or a separate critic; 0: learning_rate, as for all else"""
    critic_warmup: Annotated[int, Range(0, MOST_STEPS)] = 0
    """first iterations in which only the critic learns"""
    gamma: Annotated[float, Range(0, 1)] = 1.0
    """discount per token: below 1 short replies earn more"""
    lam: Annotated[float, Range(0, 1)] = 0.95
    """lambda of GAE, for the policy's advantages and the critic's returns"""
    lam_value: Annotated[float | None, Range(0, 1, also=(None,), hint="1 has no bias")] = None
    """lambda of the critic's returns; None: lam"""
    lam_adaptive: Annotated[float, Range(0, MOST_SCORE, hint="0.05 is usual, 0 is a fixed lambda")] = 0.0
    """alpha of length-adaptive GAE: the policy's lambda is 1 - 1 / (alpha l) for an episode of l tokens; 0: lam"""
    cliprange_value: Annotated[
        float, Range(0, MOST_SCORE, above=True, infinite=True, hint="0.2 is usual, inf clips nothing")
    ] = 0.2
    """clip range of a value's change"""
    vf_coef: Annotated[float, Range(0, 1000)] = 1.0
    """weight of the value loss"""
    whiten: bool = True
    """advantages to mean 0 and variance 1 over all ranks"""
