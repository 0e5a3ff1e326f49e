"""The task setup of conversations with the app's users."""

from typing import Any

import numpy as np

from lmgym.apps.world.app_conversation import AppConversation
from lmgym.apps.world.scorer import read_world
from lmgym.apps.world.streams import draw_population
from lmgym.apps.world.world import World
from lmgym.errors import InputError
from ppo.config import PPOConfig
from ppo.rewards import SCORER_SETTINGS
from ppo.task_setups import TaskSetup, refuse_unused

USERS, FIRST_USER = 4096, 1_000_000


def app_conversations(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """Conversations of the app: each message that a user answers is worth 1. `prompts` is world:SEED.

    The users are those of no A/B test of fewer than FIRST_USER users. Raises InputError for other prompts and scorers.
    """
    why = "the app's users reward by going on, and a scorer scores one reply to a prompt"
    refuse_unused(config.reward, SCORER_SETTINGS, why)
    world, held_out = World(read_world(config.rollout.prompts)), int(config.rollout.eval_size)
    if not 1 <= held_out < USERS:
        raise InputError(f"eval_size={config.rollout.eval_size:g}; needed: 1 to {USERS - 1} users to evaluate on")
    population = draw_population(world, FIRST_USER + np.arange(USERS), config.optimizer.split_seed)
    tasks = [{"user": int(number)} for number in population.numbers]
    fingerprint = f"{USERS} users from {FIRST_USER} of world {world.seed}, {config.optimizer.split_seed}"
    return TaskSetup(tasks[held_out:], tasks[:held_out], lambda: AppConversation(world, population), None, fingerprint)
