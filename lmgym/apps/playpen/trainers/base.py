"""The base class of trainers, and callbacks on the episodes that they play."""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue.records import Records, write_episode
from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.episodes import pair_name, write_experiment, write_players
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, play, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.console import say

RECORDS = "playpen-records"


class BaseCallback:
    """Hooks of a trainer; each does nothing unless it is overridden."""

    def on_training_start(self) -> None:
        """Called before `learn` begins to learn."""

    def on_training_end(self) -> None:
        """Called after `learn` has learned."""

    def on_rollout_start(self, game: Game, num_timesteps: int) -> None:
        """Called before episodes of a game are played; `num_timesteps` replies were given before."""

    def on_episode(self, task: GameTask, records: Records, num_timesteps: int) -> None:
        """Called after an episode; `num_timesteps` is the number of replies before it."""

    def on_rollout_end(self) -> None:
        """Called after the episodes of a game."""


class BasePlayPen(abc.ABC):
    """A trainer: a subclass in a file of its own defines `learn`, and `playpen run FILE` calls it.

    `learner` and `teacher` are players, which load their models when they first reply.
    """

    takes_flags = False
    """True if `learn` reads `flags`, the words after the options of `playpen run`"""

    def __init__(self, learner: Model, teacher: Model | None = None) -> None:
        self.learner, self.teacher = learner, teacher
        self.flags: list[str] = []
        self.num_timesteps = 0
        self.callbacks: list[BaseCallback] = []

    @abc.abstractmethod
    def learn(self, game_registry: GameRegistry) -> None:
        """Train the learner."""

    def add_callback(self, callback: BaseCallback) -> None:
        """Add a callback."""
        self.callbacks.append(callback)

    def is_learner(self, player: Model) -> bool:
        """True for the learner."""
        return player is self.learner

    def is_teacher(self, player: Model) -> bool:
        """True for the teacher."""
        return player is self.teacher

    @property
    def players(self) -> list[Model]:
        """The learner, and the teacher if there is one."""
        return [self.learner] if self.teacher is None else [self.learner, self.teacher]

    def collect_rollouts(
        self, game: Game, tasks: Sequence[GameTask], players: Sequence[Model] | None = None, seed: int = 0
    ) -> list[Records]:
        """Plays tasks and returns their records; `players` are the learner and the teacher unless they are given.

        In a game of one player the learner plays alone.
        """
        if players is None:
            players = self.players[: len(game.seats)]
        for player in players:
            player.refuse_unusable()
        for callback in self.callbacks:
            callback.on_rollout_start(game, self.num_timesteps)

        def done(index: int, records: Records) -> None:
            for callback in self.callbacks:
                callback.on_episode(tasks[index], records, self.num_timesteps)
            self.num_timesteps += replies_in(records)

        found = play(game, players, tasks, seed, done=done)
        for callback in self.callbacks:
            callback.on_rollout_end()
        return found


class GameRecordCallback(BaseCallback):
    """Writes each episode below FOLDER/PAIR/rollout0001/GAME, where an episode's number is that of its first reply."""

    def __init__(self, players: Sequence[Model], folder: str | Path = RECORDS) -> None:
        self.players, self.folder = players, Path(folder) / pair_name(players)
        self.rollout = 0
        self.game = ""

    def on_rollout_start(self, game: Game, num_timesteps: int) -> None:
        """Begin a folder for the rollout."""
        self.rollout += 1
        self.game = game.spec.name
        write_players(self.folder, self.players)

    def on_episode(self, task: GameTask, records: Records, num_timesteps: int) -> None:
        """Write the episode."""
        experiment = task.folder.split("/")[0]
        folder = self.folder / f"rollout{self.rollout:04d}" / self.game / experiment
        write_experiment(folder, self.game, task.experiment, self.players)
        write_episode(folder / f"episode_{num_timesteps + replies_in(records)}", task.instance, records)


def replies_in(records: Records) -> int:
    """Number of the players' replies in an episode."""
    turns = (records.interactions or {}).get("turns", [])
    return sum(event["from"] != "GM" for turn in turns for event in turn)


def open_games(registry: GameRegistry, names: Sequence[str] = ()) -> list[Game]:
    """The games of these names to train on; without names those that the user chose, or `GameRegistry.to_play`."""
    specs = [spec for name in names for spec in registry.select(name)] if names else registry.to_play()
    return [open_game(spec, for_training=True) for spec in specs]


def close_games(games: Sequence[Game]) -> None:
    """End the subprocesses of games that have one."""
    for game in games:
        if close := getattr(game, "close", None):
            close()


def all_tasks(games: Sequence[Game], most: int | None = None) -> list[tuple[Game, GameTask]]:
    """The instances of games, at most `most` of each."""
    return [(game, task) for game in games for task in tasks_of(game)[:most]]


def say_entry(name: str, base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Prints, and returns, the entry of model_registry.json that makes a trained model playable."""
    import json

    config = {**base.get("model_config", {}), **changes.pop("model_config", {})}
    entry = {**base, **changes, "model_name": name, "model_config": config}
    say("To play with the trained model, add this entry to model_registry.json:")
    for line in json.dumps(entry, indent=2, ensure_ascii=False).splitlines():
        say(line)
    return entry
