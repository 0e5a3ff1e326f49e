"""The task setup of an environment that the command line names: `--environment games:blackjack`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.protocol import RewardFunction, Task
from lmgym.environments.scorer_reward import Source
from lmgym.errors import InputError, shown
from lmgym.runs.paths import absolute_items
from ppo.config import PPOConfig, RolloutConfig
from ppo.rewards import SCORER_SETTINGS, load_scorer_reward
from ppo.task_setups import TaskSetup, refuse_unused

USED = frozenset({"environment"})


def environment_episodes(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """Episodes of `--environment`; `eval_size` of them are evaluated on.

    --scorers and --reward score what the environment requests scores of, if it has no scorer of its own. Raises
    InputError without an environment, beside prompts, and for scorers of an environment that has its own.
    """
    words = config.rollout.environment
    if not words:
        raise InputError("there is no environment; needed: --environment SCHEME:NAME, as `lmgym env list` shows")
    # a run's paths are absolute where such a file is there
    prompts, default = (absolute_items("prompts", rollout.prompts) for rollout in (config.rollout, RolloutConfig()))
    if prompts != default:
        raise InputError(
            f"--environment {shown(words)} has tasks of its own, beside --prompts {shown(config.rollout.prompts)}; "
            "needed: one of them"
        )
    named = load_environment(words, tokenizer)
    train, held_out = split_tasks(named, config.rollout.eval_size, config.optimizer.split_seed)
    reward: RewardFunction | None = named.reward_function
    monitors: Mapping[str, Source] = {}
    if reward is None and (config.reward.scorers or config.reward.reward):
        reward, monitors = load_scorer_reward(config.reward, tokenizer)
    else:
        refuse_unused(config.reward, SCORER_SETTINGS, f"{words} has its own rewards")
    return TaskSetup(
        train,
        held_out,
        named.environment,
        reward,
        words,
        monitors=monitors,
        players=named.players,
        trained_agents=named.trained_agents,
        reading=[f"{words}: {named.about}"] if named.about else [],
        reference_lines=named.reference_lines,
        uses_settings=USED,
    )


def split_tasks(named: NamedEnvironment, eval_size: float, seed: int) -> tuple[Sequence[Task], Sequence[Task]]:
    """(tasks to train on, tasks to evaluate on): the environment's own, or a random part of its tasks.

    `eval_size` is a number, or a share below 1. A single task is in both, unless there is another single one to
    evaluate on: episodes have different seeds. Raises
    InputError for more than there are.
    """
    tasks, own = named.tasks, named.eval_tasks
    several = len(own) or len(tasks)
    wanted = int(eval_size) if eval_size >= 1 else round(eval_size * several)
    if len(tasks) == 1 and len(own) < 2:
        if eval_size < 1:
            raise InputError(f"eval_size={eval_size:g}; needed: a number of episodes of {named.name} to evaluate on")
        return tasks, [*(own or tasks)] * wanted
    if not 1 <= wanted <= (len(own) or len(tasks) - 1):
        raise InputError(
            f"eval_size={eval_size:g} of {several:,} tasks of {named.name}; needed: 1 to {len(own) or len(tasks) - 1:,}"
        )
    if own:
        return tasks, own[:wanted]
    order = np.random.default_rng(seed).permutation(len(tasks))
    return [tasks[i] for i in np.sort(order[wanted:])], [tasks[i] for i in np.sort(order[:wanted])]
