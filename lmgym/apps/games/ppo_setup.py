"""The task setup of the games of `lmgym games list`."""

from typing import Any

from lmgym.apps.games.ladder import find_game
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ScriptedGenerator
from ppo.config import PPOConfig
from ppo.rewards import SCORER_SETTINGS
from ppo.task_setups import TaskSetup, refuse_unused

GAME = "game:"


def game_episodes(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """Episodes of a game of `lmgym games list`, which are its seeds. `prompts` is game:NAME.

    Its other players are scripts. Raises InputError for other prompts, scorers, and games that are not installed.
    """
    refuse_unused(config.reward, SCORER_SETTINGS, "a game has its own rewards")
    words, held_out = config.rollout.prompts, int(config.rollout.eval_size)
    if not words.startswith(GAME):
        raise InputError(f"prompts={shown(words)}; needed: game:NAME, of `lmgym games list`")
    if held_out < 1:
        raise InputError(f"eval_size={config.rollout.eval_size:g}; needed: a number of episodes to evaluate on")
    game = find_game(words.removeprefix(GAME))
    game.environment(tokenizer)  # without its extra it is refused before anything is loaded
    players = {agent: ScriptedGenerator(script) for agent, script in game.opponents.items()}
    return TaskSetup(
        [{}],
        [{}] * held_out,
        lambda: game.environment(tokenizer),
        None,
        words,
        players=players,
        reference_lines=game.reference_lines,
    )
