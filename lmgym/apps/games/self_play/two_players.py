"""The games of two players that need no other library, with scripted players."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from lmgym.apps.games.alternating import SIDES, Alternating, Rules, minimax, one_move_ahead, random_move
from lmgym.apps.games.ladder import Script
from lmgym.apps.games.nim import Nim
from lmgym.apps.games.replies import unknown_id
from lmgym.apps.games.small_policy import Moves, untrained
from lmgym.apps.games.tic_tac_toe import TicTacToe
from lmgym.environments.protocol import Environment
from lmgym.environments.random_walks_model import made_once
from lmgym.errors import InputError
from lmgym.text import Conversation

RANDOM = "random"
START_MOVES = 2000


@dataclass(frozen=True)
class TwoPlayerGame:
    """A zero-sum game: both agents act in every episode, and their rewards add up to 0."""

    name: str
    make: Callable[[], Environment]
    sides: tuple[str, str] = SIDES
    """the agents"""
    scripts: Mapping[str, Script] = field(default_factory=dict)
    """scripted players of either side by name; "random" among them"""
    max_new_tokens: int = 8
    """of a move"""

    def script(self, name: str) -> Script:
        """The scripted player of a name. Raises InputError if there is none."""
        if name not in self.scripts:
            known = ", ".join(self.scripts) or "none"
            raise InputError(f"{self.name} has no scripted player {name!r}; needed: one of {known}")
        return self.scripts[name]


def of_rules(name: str, rules: Rules, max_new_tokens: int) -> TwoPlayerGame:
    """A game of rules, with a random player, one that looks one move ahead, and one that plays perfectly."""
    players = {RANDOM: random_move, "heuristic": one_move_ahead, "optimal": minimax}
    scripts = {player: partial(script, rules) for player, script in players.items()}
    return TwoPlayerGame(name, lambda: Alternating(rules), SIDES, scripts, max_new_tokens)


TWO_PLAYER_GAMES = {game.name: game for game in (of_rules("tic_tac_toe", TicTacToe(), 2), of_rules("nim", Nim(), 3))}


def find_two_player_game(name: str) -> TwoPlayerGame:
    """The game of a name. Raises InputError, with the nearest names, if there is none."""
    if name not in TWO_PLAYER_GAMES:
        raise unknown_id(name, TWO_PLAYER_GAMES, "lmgym's list of games for two players")
    return TWO_PLAYER_GAMES[name]


def make_start(name: str, folder: str | Path, seed: int = 0) -> Path:
    """`folder` with a small policy from scratch, made on first use. It knows the words of the game and nothing else:
    over the listed moves it plays at random, over tokens it says no move.
    """
    game = find_two_player_game(name)
    return made_once(Path(folder), lambda: untrained(random_moves(game, START_MOVES, seed), seed))


def random_moves(game: TwoPlayerGame, moves: int, seed: int = 0) -> Moves:
    """At least so many (prompt, move) of random players of both sides."""
    found: Moves = []
    rng, number, script = np.random.default_rng(seed), 0, game.script(RANDOM)
    while len(found) < moves:
        environment = game.make()
        shown = environment.reset({}, seed + number)
        while shown:
            prompts = {side: one.prompt for side, one in shown.items() if isinstance(one.prompt, Conversation)}
            said = {side: script(prompt, rng) for side, prompt in prompts.items()}
            found += [(prompts[side], said[side]) for side in shown]
            shown = environment.step(said).observations
        number += 1
    return found
