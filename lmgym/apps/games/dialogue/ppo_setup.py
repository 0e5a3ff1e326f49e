"""The task setup of dialogue games: one role is trained, scripts play the others."""

from dataclasses import replace
from typing import Any

from lmgym.apps.games.dialogue.instances import VALIDATION
from lmgym.apps.games.dialogue.syllables import find_game, make_start
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ScriptedGenerator
from ppo.config import PPOConfig
from ppo.rewards import SCORER_SETTINGS
from ppo.task_setups import TaskSetup, refuse_unused

DIALOGUE = "dialogue:"


def dialogue_episodes(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """Episodes of a dialogue game, with scripted winners in the other roles. `prompts` is dialogue:GAME/ROLE.

    The role may be left out of a game with one. Training instances follow from the episodes' seeds; at least
    `eval_size` held-out ones, equally many of each experiment, are evaluated on. Raises InputError for another game or
    role, scorers, and more instances than are held out.
    """
    refuse_unused(config.reward, SCORER_SETTINGS, "a dialogue game has its own rewards")
    words, held_out = config.rollout.prompts, int(config.rollout.eval_size)
    if not words.startswith(DIALOGUE):
        raise InputError(f"prompts={shown(words)}; needed: dialogue:GAME/ROLE, of `lmgym dialogue list`")
    name, _, role = words.removeprefix(DIALOGUE).partition("/")
    game = find_game(name)
    if role not in game.roles and (role or len(game.roles) > 1):
        raise InputError(
            f"{name} has no role {shown(role)}; needed: {' or '.join(game.roles)}, as in dialogue:GAME/ROLE"
        )
    if held_out < 1:
        raise InputError(f"eval_size={config.rollout.eval_size:g}; needed: a number of instances to evaluate on")
    evaluation = game.tasks(-(-held_out // len(game.experiment_names)), split=VALIDATION)
    others = {other: ScriptedGenerator(game.script(other)) for other in game.roles if other != (role or game.roles[0])}
    return TaskSetup([{}], evaluation, game.environment, None, words, players=others)


def with_small_policy(config: PPOConfig, folder: str) -> PPOConfig:
    """If the policy is `folder`, a small policy in a folder of that for the game, made on first use.

    Raises InputError for a game that no small policy plays.
    """
    if config.policy.model != folder:
        return config
    game = config.rollout.prompts.removeprefix(DIALOGUE).partition("/")[0]
    return replace(config, policy=replace(config.policy, model=str(make_start(game, f"{folder}/{game}"))))
