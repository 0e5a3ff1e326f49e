"""The dialogue games by name: roles, environments, instances, and scripted players."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lmgym.apps.games.dialogue import grid_reference, private_shared, taboo, word_guess, word_guess_players
from lmgym.apps.games.dialogue.instances import TRAIN, VALIDATION, Draw, draw_instances
from lmgym.apps.games.dialogue.records import RecordedEnvironment, Records
from lmgym.apps.games.dialogue.scoring import RewardKind
from lmgym.apps.games.dialogue.words import LEVELS
from lmgym.environments.engine import play
from lmgym.environments.players import ScriptPlayer, by_conversation
from lmgym.environments.protocol import Task
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ReplyScript

PLAYERS = ("winner", "loser", "rule_breaker")
INSTANCES, SEED = 10, 0  # of each experiment of the packaged games


@dataclass(frozen=True)
class DialogueGame:
    """A game with its instances and scripts."""

    name: str
    about: str
    roles: Sequence[str]
    """the agents, in the order of players"""
    make: Callable[..., RecordedEnvironment]
    """of a kind of reward"""
    draw: Draw
    experiment_names: Sequence[str]
    scripts: Mapping[str, Mapping[str, ReplyScript]]
    """by PLAYERS and role"""

    @property
    def fields(self) -> dict[str, Any]:
        """The entry of a registry of games, as clembench's clemgame.json has it."""
        return {
            "game_name": self.name, "description": self.about, "main_game": self.name, "players": len(self.roles),
            "image": "none", "languages": ["en"], "benchmark": ["lmgym"], "roles": list(self.roles),
        }  # fmt: skip

    @property
    def seats(self) -> Sequence[str]:
        """The agents: the roles."""
        return self.roles

    def experiments(self, number: int = INSTANCES, seed: int = SEED, split: str = VALIDATION) -> list[dict[str, Any]]:
        """So many instances of each experiment, in clembench's form; held-out ones unless `split` is train."""
        return [
            {"name": name, "game_instances": draw_instances(self.draw, name, number, seed, split)}
            for name in self.experiment_names
        ]

    def tasks(self, number: int = INSTANCES, seed: int = SEED, split: str = TRAIN) -> list[dict[str, Any]]:
        """A task for each of those instances."""
        return [
            {"experiment": {"name": experiment["name"]}, "instance": instance}
            for experiment in self.experiments(number, seed, split)
            for instance in experiment["game_instances"]
        ]

    def environment(self, reward: RewardKind = "main_score") -> RecordedEnvironment:
        """A new environment, for one episode."""
        return self.make(reward=reward)

    def script(self, seat: str, player: str = "winner") -> ReplyScript:
        """A scripted player in the role. Raises InputError for one that there is not."""
        if player not in self.scripts:
            raise InputError(f"player={shown(player)}; needed: {', '.join(self.scripts)}")
        return self.scripts[player][seat]


def play_scripted(game: DialogueGame, task: Task, players: Mapping[str, str], seed: int = 0) -> Records:
    """The records of an episode of scripted players, named by role."""
    environment = game.environment()
    seated = {role: _script_player(game, role, players[role]) for role in game.roles}
    names = {role: f"scripted_{players[role]}" for role in game.roles}
    play([environment], [{**task, "players": names}], [seed], seated, stops=(Exception,))
    return environment.records()


def _script_player(game: DialogueGame, role: str, name: str) -> ScriptPlayer:
    place = list(game.roles).index(role)
    return ScriptPlayer(by_conversation(game.script(role, name)), lambda seed: [seed, place])


def find_dialogue_game(name: str) -> DialogueGame:
    """The game of a name. Raises InputError if there is none."""
    if name not in GAMES:
        raise InputError(f"there is no dialogue game {shown(name)}; needed: {', '.join(GAMES)}")
    return GAMES[name]


def _word_guess(variant: word_guess.Variant, about: str) -> DialogueGame:
    roles = (word_guess.GUESSER, word_guess.CRITIC) if variant == "critic" else (word_guess.GUESSER,)
    scripts = word_guess_players.SCRIPTS
    make = partial(word_guess.WordGuess, variant)
    return DialogueGame(word_guess.NAMES[variant], about, roles, make, word_guess.draw, LEVELS, scripts)


GAMES: dict[str, DialogueGame] = {
    game.name: game
    for game in (
        DialogueGame(taboo.NAME, "Describe a word without forbidden words, and guess it", taboo.ROLES, taboo.Taboo,
                     taboo.draw, LEVELS, taboo.SCRIPTS),
        _word_guess("plain", "Guess a word of five letters by coloured letters"),
        _word_guess("clue", "Guess a word of five letters by a clue and coloured letters"),
        _word_guess("critic", "Guess a word of five letters by a clue, coloured letters and a critic's opinion"),
        DialogueGame(grid_reference.NAME, "Describe a grid, and find it among three", grid_reference.ROLES,
                     grid_reference.GridReference, grid_reference.draw, grid_reference.EXPERIMENTS,
                     grid_reference.SCRIPTS),
        DialogueGame(private_shared.NAME, "Answer questions, and know what the other knows", private_shared.ROLES,
                     private_shared.PrivateShared, private_shared.draw, private_shared.EXPERIMENTS,
                     private_shared.SCRIPTS),
    )
}  # fmt: skip
