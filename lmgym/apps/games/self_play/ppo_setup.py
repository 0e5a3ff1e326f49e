"""Task setups of games for two players: one policy plays both sides, or one side against an opponent.

Design decisions:
- Evaluations are games against the game's random player, half of them on either side: against itself a policy always
  has a mean return of 0.
- Each side is an agent, and so has its own group baselines; a critic reads the side in the prompt.
"""

from typing import Any

from lmgym.apps.games.self_play.two_players import RANDOM, TwoPlayerGame, find_two_player_game
from lmgym.environments.one_side import OPPONENT, OneSide, both_sides
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ScriptedGenerator
from ppo.config import PPOConfig
from ppo.opponents import POOL, pool_folder
from ppo.rewards import SCORER_SETTINGS
from ppo.task_setups import Prepare, TaskSetup, refuse_unused

GAMES = "games:"


def self_play(config: PPOConfig, tokenizer: Any) -> TaskSetup:
    """The game of `--environment games:NAME`. Raises InputError for others, scorers and unknown opponents."""
    words = config.rollout.environment or ""
    if not words.startswith(GAMES):
        raise InputError(
            f"environment={shown(words)}; needed: games:NAME, a game for two players such as games:tic_tac_toe"
        )
    return play_both_sides(find_two_player_game(words.removeprefix(GAMES)))(config, tokenizer)


def play_both_sides(game: TwoPlayerGame) -> Prepare:
    """A game of two players by the setting `opponents`: None, the policy plays both sides; else it changes sides.

    The game needs a scripted player named "random", for evaluations.
    """

    def prepare(config: PPOConfig, tokenizer: Any) -> TaskSetup:
        refuse_unused(config.reward, SCORER_SETTINGS, "a game has its own rewards")
        opponents, evaluations = config.rollout.opponents, int(config.rollout.eval_size)
        if evaluations < 2:
            raise InputError(f"eval_size={config.rollout.eval_size:g}; needed: 2 games or more to evaluate on")

        def one_side() -> OneSide:
            return OneSide(game.make(), game.sides)

        evaluation = {
            "eval_environment": one_side,
            "eval_players": {OPPONENT: ScriptedGenerator(game.script(RANDOM))},
            "uses_settings": frozenset({"opponents", "environment"}),
        }
        held_out = both_sides(game.sides, evaluations)
        words = f"{GAMES}{game.name} {opponents}"
        if opponents is None:
            return TaskSetup([{}], held_out, game.make, None, words, trained_agents=2, **evaluation)  # type: ignore[arg-type]
        players = {}
        if opponents.startswith(POOL):
            pool_folder(opponents)  # refuses an empty path
        else:
            players[OPPONENT] = ScriptedGenerator(game.script(opponents))
        return TaskSetup(both_sides(game.sides), held_out, one_side, None, words, players=players, **evaluation)  # type: ignore[arg-type]

    return prepare
