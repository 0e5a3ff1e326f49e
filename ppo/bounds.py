"""Numbers that a PPO run cannot have, alone or together: refused before anything is loaded."""

from math import inf

from lmgym.bounds import Bound, bounds_of_stages, refuse_out_of_bounds
from lmgym.config import RunConfig
from lmgym.errors import InputError
from lmgym.training import refuse_fp16_without_gpu
from ppo.advantages import MOST_CHANGE
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig


def refuse_impossible(config: PPOConfig, ranks: int) -> None:
    """Raises InputError, before anything is loaded, for numbers that do not go together."""
    rollouts, batch, micro = config.rollout.num_rollouts, config.optimizer.global_batch, config.optimizer.micro_batch
    if batch < 1 or micro < 1 or rollouts < 1:
        raise InputError(f"num_rollouts={rollouts}, global_batch={batch}, micro_batch={micro}; needed: 1 or more each")
    if batch % ranks:
        raise InputError(f"global_batch={batch} cannot be shared by {ranks} ranks; use {_near(batch, ranks)}")
    if rollouts % batch:
        raise InputError(
            f"num_rollouts={rollouts} is not a multiple of global_batch={batch}; use {_near(rollouts, batch)}: every "
            "update of an iteration sees as many rollouts"
        )
    refuse_out_of_bounds(_bounds(config))
    refuse_out_of_bounds(bounds_of_stages(config.policy, config.optimizer, config.run))
    _ = config.sampling
    if config.method.num_layers_unfrozen > 0 and config.policy.lora_rank:
        raise InputError(
            f"num_layers_unfrozen={config.method.num_layers_unfrozen} and lora_rank={config.policy.lora_rank}: each is "
            "a way to train a part of the policy; choose one (--num_layers_unfrozen -1 or --lora_rank 0)"
        )
    if config.method.target is not None:
        _refuse_target(config)
    _refuse_precision(config)


def _bounds(config: PPOConfig) -> list[Bound]:
    """Of each setting that only PPO has, or that has other bounds here."""
    dropout, log, an_iteration = config.policy.lora_dropout, config.run.log_updates, config.updates_an_iteration
    usual, workers, rate = RunConfig().log_updates, config.run.data_workers, config.optimizer.learning_rate
    return [
        *_of_rollouts(config.rollout),
        *_of_rewards(config.reward),
        *_of_the_method(config.method),
        Bound("learning_rate", rate, 0 < rate < inf, "above 0"),
        Bound(
            "lora_dropout",
            dropout,
            dropout == 0,
            "0: replies are learned by the log-probabilities that they were sampled with, so dropout is off in PPO",
        ),
        Bound(
            "packed", config.policy.packed, config.policy.packed is None, "none; leave it out: PPO packs where it can"
        ),
        Bound("data_workers", workers, workers == 0, "0: no batches are prepared where replies are sampled"),
        Bound(
            "log_updates",
            log,
            log == usual,
            f"{usual}, which is to leave it out: PPO logs a line an iteration, which is {an_iteration} updates here",
        ),
    ]


def _of_rollouts(r: RolloutConfig) -> list[Bound]:
    held_out = 0 <= r.eval_size < 1 or (0 < r.eval_size < inf and r.eval_size == int(r.eval_size))
    return [
        Bound("temperature", r.temperature, r.temperature > 0, "above 0: a policy must explore"),
        Bound("eval_size", r.eval_size, held_out, "a share below 1, or a whole number of prompts"),
        Bound("max_prompt", r.max_prompt, r.max_prompt >= 0, "1 or more, or 0 for what the context leaves"),
        Bound("batch_rows", r.batch_rows, r.batch_rows >= 1, "1 or more"),
        Bound("cache_gb", r.cache_gb, r.cache_gb >= 0, "0 (keeps nothing) or more"),
    ]


def _of_rewards(w: RewardConfig) -> list[Bound]:
    penalty, least = w.missing_eos_penalty, w.max_failed_rewards
    return [
        Bound("scale", w.scale, 0 < w.scale < inf, "above 0"),
        Bound(
            "cliprange_reward",
            w.cliprange_reward,
            w.cliprange_reward > 0,
            "above 0, or no reward is left; 5 to 10 is usual, inf cuts none",
        ),
        Bound("missing_eos_penalty", penalty, 0 <= penalty < inf, "0 or more: it is taken off the score"),
        Bound("max_failed_rewards", least, 0 <= least <= 1, "0 to 1"),
        Bound("reward_retries", w.reward_retries, w.reward_retries >= 0, "0 or more"),
        Bound("reward_timeout", w.reward_timeout, 0 < w.reward_timeout < inf, "seconds above 0, and an end to them"),
    ]


def _of_the_method(m: MethodConfig) -> list[Bound]:
    layers, rate, least = m.num_layers_unfrozen, m.critic_learning_rate, m.min_reward
    return [
        Bound("ppo_epochs", m.ppo_epochs, m.ppo_epochs >= 1, "1 or more"),
        Bound("gamma", m.gamma, 0 <= m.gamma <= 1, "0 to 1"),
        Bound("lam", m.lam, 0 <= m.lam <= 1, "0 to 1"),
        Bound("cliprange", m.cliprange, m.cliprange > 0, "above 0; .2 is usual"),
        Bound(
            "cliprange_value", m.cliprange_value, m.cliprange_value > 0, "above 0; .2 is usual, inf lets values go free"
        ),
        Bound("vf_coef", m.vf_coef, 0 <= m.vf_coef < inf, "0 or more: below 0 the critic would learn to be wrong"),
        Bound("init_kl_coef", m.init_kl_coef, 0 <= m.init_kl_coef < inf, "0 or more"),
        Bound(
            "target", m.target, m.target is None or 0 < m.target < inf, "above 0; leave it out for a fixed coefficient"
        ),
        Bound("horizon", m.horizon, 0 < m.horizon < inf, "above 0; 10000 is usual"),
        Bound("stop_kl", m.stop_kl, m.stop_kl >= 0, "above 0, or 0 to never end epochs early; .02 to .1 is usual"),
        Bound("critic_learning_rate", rate, 0 <= rate < inf, "0 or more"),
        Bound("critic_warmup", m.critic_warmup, m.critic_warmup >= 0, "iterations, or 0 for none"),
        Bound("num_layers_unfrozen", layers, layers == -1 or layers > 0, "1 or more, or -1 to train all"),
        Bound("max_kl", m.max_kl, m.max_kl >= 0, "above 0, or 0 to never stop for it"),
        Bound("min_reward", least, least is None or least < inf, "a number, or none to never stop for it"),
        Bound(
            "min_length", m.min_length, 0 <= m.min_length < 1, "a share of the first length below 1, or 0 for no bound"
        ),
    ]


def _refuse_target(config: PPOConfig) -> None:
    method, rollouts = config.method, config.rollout.num_rollouts
    if method.init_kl_coef <= 0:
        raise InputError("target needs init_kl_coef above 0: an adaptive weight of 0 stays 0")
    if method.horizon <= MOST_CHANGE * rollouts:
        raise InputError(
            f"horizon={method.horizon:g} with num_rollouts={rollouts}; needed: a horizon above "
            f"{MOST_CHANGE * rollouts:g}, or one iteration can take all of the KL coefficient; 10000 is usual"
        )


def _refuse_precision(config: PPOConfig) -> None:
    refuse_fp16_without_gpu(config.policy)
    if config.policy.precision == "fp16" and config.run.deepspeed is None:
        raise InputError(
            "--precision fp16 without --deepspeed; needed: DeepSpeed, which alone scales the loss of PPO so that small "
            "gradients are not lost: use bf16 or fp32, or add --deepspeed configs/zero2.json"
        )


def _near(number: int, factor: int) -> str:
    low, high = number // factor * factor, -(-number // factor) * factor
    return f"{low} or {high}" if low else str(high)
