"""Warnings and notes on the settings of a run, shown with its plan."""

from lmgym.runs.flags import flatten
from ppo.config import PPOConfig


def bias_notes(config: PPOConfig) -> list[str]:
    """A warning if rollouts are sampled from another distribution than the policy's."""
    r = config.rollout
    defaults = {"top_k": 0, "top_p": 1.0, "repetition_penalty": 1.0}
    found = [f"{name}={getattr(r, name)}" for name, default in defaults.items() if getattr(r, name) != default]
    warning = (
        f"warning: {', '.join(found)} in rollouts: replies are drawn from another distribution than the policy's, so "
        "the gradient is biased; PPO's own is temperature alone"
    )
    return [warning] if found and r.policy_over == "tokens" else []


def unread_notes(config: PPOConfig) -> list[str]:
    """A line on settings of the experiment that are not read: those of the command line are refused."""
    defaults, values = flatten(PPOConfig(config.name)), flatten(config)
    found = [f"{name}={values[name]}" for name in values if name in config.unread and values[name] != defaults[name]]
    who = config.algorithm.name + " over actions" * (config.rollout.policy_over == "actions")
    return [f"{who} does not read {', '.join(found)} of the experiment"] if found else []


def warmup_notes(config: PPOConfig, iterations: int) -> list[str]:
    """A warning if the critic's warm-up is as long as the run."""
    warmup = config.critic.critic_warmup
    if warmup < iterations or not config.algorithm.has_critic:
        return []
    return [f"warning: critic_warmup={warmup} of {iterations} iterations: the policy will not learn, only its critic"]
