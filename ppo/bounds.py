"""Numbers that a PPO run cannot have, alone or together: refused before anything is loaded."""

from math import inf

from lmgym.config import check_eval_size, check_shared_settings
from lmgym.errors import (
    MOST_GB,
    MOST_SCORE,
    MOST_SECONDS,
    MOST_STEPS,
    MOST_TEMPERATURE,
    MOST_TOGETHER,
    MOST_TOKENS,
    Bound,
    InputError,
    count_bound,
    refuse_out_of_bounds,
)
from lmgym.training.setup import refuse_fp16_without_gpu
from ppo.algorithms.advantages import MOST_CHANGE
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig


def refuse_impossible(config: PPOConfig, ranks: int) -> None:
    """Raises InputError, before anything is loaded, for numbers that do not go together."""
    rollouts, batch = config.rollout.num_rollouts, config.optimizer.global_batch
    refuse_out_of_bounds(_bounds(config))
    check_shared_settings(config, config.policy)
    check_eval_size(config.rollout.eval_size, "prompts")
    _ = config.sampling
    if batch % ranks:
        raise InputError(f"global_batch={batch} cannot be shared by {ranks} ranks; use {_near(batch, ranks)}")
    if rollouts % batch:
        raise InputError(
            f"num_rollouts={rollouts} is not a multiple of global_batch={batch}; use {_near(rollouts, batch)}: every "
            "update of an iteration sees as many rollouts"
        )
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
    rate = config.optimizer.learning_rate
    return [
        *_of_rollouts(config.rollout),
        *_of_rewards(config.reward),
        *_of_the_method(config.method),
        Bound("learning_rate", rate, 0 < rate <= 1, "above 0; at most 1"),
    ]


def _of_rollouts(r: RolloutConfig) -> list[Bound]:
    hot, tokens = 0 < r.temperature <= MOST_TEMPERATURE, 0 <= r.max_prompt <= MOST_TOKENS
    return [
        Bound("temperature", r.temperature, hot, f"above 0: a policy must explore; at most {MOST_TEMPERATURE}"),
        count_bound("num_rollouts", r.num_rollouts, MOST_TOGETHER),
        Bound(
            "eval_size",
            r.eval_size,
            0 <= r.eval_size <= MOST_STEPS,
            f"a share below 1, or a whole number of prompts; at most {MOST_STEPS:,}",
        ),
        Bound(
            "max_prompt", r.max_prompt, tokens, f"1 or more, or 0 for what the context leaves; at most {MOST_TOKENS:,}"
        ),
        count_bound("batch_rows", r.batch_rows, MOST_TOGETHER),
        Bound("cache_gb", r.cache_gb, 0 <= r.cache_gb <= MOST_GB, f"0 (keeps nothing) or more; at most {MOST_GB:,.0f}"),
    ]


def _of_rewards(w: RewardConfig) -> list[Bound]:
    penalty, least, clip, most = w.missing_eos_penalty, w.max_failed_rewards, w.cliprange_reward, f"{MOST_SCORE:,.0f}"
    return [
        Bound("scale", w.scale, 0 < w.scale <= MOST_SCORE, f"above 0; at most {most}"),
        Bound(
            "cliprange_reward",
            clip,
            0 < clip <= MOST_SCORE or clip == inf,
            f"above 0, or no reward is left; 5 to 10 is usual, inf cuts none; at most {most}, or inf",
        ),
        Bound(
            "missing_eos_penalty",
            penalty,
            0 <= penalty <= MOST_SCORE,
            f"0 or more: it is taken off the score; at most {most}",
        ),
        Bound("max_failed_rewards", least, 0 <= least <= 1, "0 to 1"),
        Bound("reward_retries", w.reward_retries, 0 <= w.reward_retries <= 1000, "0 or more; at most 1,000"),
        Bound(
            "reward_timeout",
            w.reward_timeout,
            0 < w.reward_timeout <= MOST_SECONDS,
            f"seconds above 0; at most {MOST_SECONDS:,}",
        ),
    ]


def _of_the_method(m: MethodConfig) -> list[Bound]:
    least = m.min_reward
    return [
        count_bound("ppo_epochs", m.ppo_epochs, 1000),
        Bound("gamma", m.gamma, 0 <= m.gamma <= 1, "0 to 1"),
        Bound("lam", m.lam, 0 <= m.lam <= 1, "0 to 1"),
        Bound(
            "cliprange",
            m.cliprange,
            0 < m.cliprange <= 1000 or m.cliprange == inf,
            "above 0; .2 is usual, inf clips nothing; at most 1,000, or inf",
        ),
        Bound(
            "cliprange_value",
            m.cliprange_value,
            0 < m.cliprange_value <= MOST_SCORE or m.cliprange_value == inf,
            f"above 0; .2 is usual, inf lets values go free; at most {MOST_SCORE:,.0f}, or inf",
        ),
        Bound(
            "vf_coef",
            m.vf_coef,
            0 <= m.vf_coef <= 1000,
            "0 or more: below 0 the critic would learn to be wrong; at most 1,000",
        ),
        Bound(
            "min_reward",
            least,
            least is None or -MOST_SCORE <= least <= MOST_SCORE,
            f"a number, or none to never stop for it; at least -{MOST_SCORE:,.0f}, at most {MOST_SCORE:,.0f}",
        ),
        Bound(
            "min_length", m.min_length, 0 <= m.min_length < 1, "a share of the first length below 1, or 0 for no bound"
        ),
        *_of_kl(m),
        *_of_parts_that_learn(m),
    ]


def _of_kl(m: MethodConfig) -> list[Bound]:
    """Of what is in nats, and of the coefficient's steps."""
    nats = f"at most {MOST_SCORE:,.0f}"
    return [
        Bound("init_kl_coef", m.init_kl_coef, 0 <= m.init_kl_coef <= 1000, "0 or more; at most 1,000"),
        Bound(
            "target",
            m.target,
            m.target is None or 0 < m.target <= MOST_SCORE,
            f"above 0; leave it out for a fixed coefficient; {nats}",
        ),
        Bound("horizon", m.horizon, 0 < m.horizon <= 1e12, "above 0; 10000 is usual; at most 1,000,000,000,000"),
        Bound(
            "stop_kl",
            m.stop_kl,
            0 <= m.stop_kl <= MOST_SCORE,
            f"above 0, or 0 to never end epochs early; .02 to .1 is usual; {nats}",
        ),
        Bound("max_kl", m.max_kl, 0 <= m.max_kl <= MOST_SCORE, f"above 0, or 0 to never stop for it; {nats}"),
    ]


def _of_parts_that_learn(m: MethodConfig) -> list[Bound]:
    layers, rate = m.num_layers_unfrozen, m.critic_learning_rate
    return [
        Bound("critic_learning_rate", rate, 0 <= rate <= 1, "0 or more; at most 1"),
        Bound(
            "critic_warmup",
            m.critic_warmup,
            0 <= m.critic_warmup <= MOST_STEPS,
            f"iterations, or 0 for none; at most {MOST_STEPS:,}",
        ),
        Bound(
            "num_layers_unfrozen",
            layers,
            layers == -1 or 1 <= layers <= 65_536,
            "1 or more, or -1 to train all; at most 65,536",
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
