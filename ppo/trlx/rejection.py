"""RFT of a trlx program, fine-tuning on the best of the policy's own replies, as the method rft of PPO's loop."""

from collections.abc import Iterable
from dataclasses import replace

from lmgym.distributed.ranks import world_size
from lmgym.errors import MOST_TOGETHER, InputError
from ppo.config import LimitConfig, MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.trlx.data.configs import TRLConfig
from ppo.trlx.data.method_configs import RFTConfig
from ppo.trlx.settings import number, rollout_settings, run_name, shared_settings, unfrozen_layers, whole_iterations


def rft_config(config: TRLConfig, prompts: int, stop: Iterable[str] = ()) -> tuple[PPOConfig, list[str]]:
    """(our config, notes) for so many prompts, all of which are replied to in each iteration.

    An update has about batch_size replies that are learned, so that it has more in all. Raises InputError for what is
    not here.
    """
    method = config.method
    assert isinstance(method, RFTConfig)
    steps = number("method.n_improve_steps", method.n_improve_steps, int)
    replies = number("method.n_generations_per_prompt", method.n_generations_per_prompt, int)
    first, last = (number(f"method.{n}_percentile", getattr(method, f"{n}_percentile")) for n in ("start", "end"))
    if not 0 <= first <= last < 1 or steps < 1:
        found = f"start_percentile={first:g}, end_percentile={last:g}, n_improve_steps={steps}"
        raise InputError(f"{found}; needed: 0 <= start <= end < 1, and a step or more")
    percentile = first + (last - first) / steps * (steps - 1) / 2  # the mean of trlx's thresholds
    rollouts = replies * prompts
    if not 0 < rollouts <= MOST_TOGETHER:
        raise InputError(
            f"{replies} replies to each of {prompts:,} prompts; needed: {MOST_TOGETHER:,} replies at most, which an "
            "iteration samples: fewer prompts or a smaller n_generations_per_prompt"
        )
    ranks, batch = world_size(), number("train.batch_size", config.train.batch_size, int)
    update = largest_batch(rollouts, batch * ranks / (1 - percentile), ranks)
    shared = shared_settings(config, updates_per_epoch=rollouts // update)
    sampling, notes = rollout_settings(config, stop)
    notes += whole_iterations(shared.optimizer.max_updates, steps * (rollouts // update))
    if steps > 1:
        notes.append(f"method.start_percentile to end_percentile: every step has their mean, {percentile:.3g}")
    ours = PPOConfig(
        run_name(config),
        shared.model,
        RolloutConfig(num_rollouts=rollouts, num_generations=replies, **sampling),
        RewardConfig(cliprange_reward=float("inf")),
        MethodConfig("rft", ppo_epochs=steps, percentile=percentile, num_layers_unfrozen=unfrozen_layers(config)),
        replace(shared.optimizer, global_batch=update),
        shared.run,
        limits=LimitConfig(max_kl=0.0, min_length=0.0),
    )
    return ours, [*shared.notes, *notes]


def largest_batch(rollouts: int, most: float, ranks: int) -> int:
    """The largest part of the rollouts, of at most so many, that ranks can share; all of them if there is none."""
    parts = (rollouts // number for number in range(1, rollouts + 1) if rollouts % number == 0)
    return next((part for part in parts if part <= most and part % ranks == 0), rollouts)
