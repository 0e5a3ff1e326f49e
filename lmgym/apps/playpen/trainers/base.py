"""The base class of trainers, and callbacks on the episodes that they play."""

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue.records import Records, write_episode
from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.episodes import write_experiment, write_players
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, play, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.branching import BranchingPlayer, GameBranchingEnv
from lmgym.apps.playpen.trainers.buffers import RolloutBuffer
from lmgym.apps.playpen.trainers.stepping import GameEnv, SeatedPlayer
from lmgym.console import say
from lmgym.errors import InputError

RECORDS = "playpen-records"


class BaseCallback:
    """Hooks of a trainer; each does nothing unless it is overridden."""

    trainer: "BasePlayPen | None" = None
    """that it was added to"""
    locals: Mapping[str, Any] = {}
    """`player`, `context`, `response`, `done`, `info` and `game_env` of the latest step of `_collect_rollouts`"""

    def on_training_start(self) -> None:
        """Called before `learn` begins to learn."""

    def on_training_end(self) -> None:
        """Called after `learn` has learned."""

    def on_rollout_start(self, game: Game | GameEnv | GameBranchingEnv, num_timesteps: int) -> None:
        """Called before episodes of a game are played; `num_timesteps` replies were given before."""

    def on_step(self) -> None:
        """Called after each reply of `_collect_rollouts`."""

    def on_episode(self, task: GameTask, records: Records, num_timesteps: int) -> None:
        """Called after an episode; `num_timesteps` is the number of replies before it."""

    def on_branches(self, task: GameTask, branches: Sequence[Records], num_timesteps: int) -> None:
        """Called after an episode that branched, with the records of each branch."""

    def on_rollout_end(self) -> None:
        """Called after the episodes of a game."""

    def is_learning_player(self) -> bool:
        """True if the latest step was the learner's."""
        return self.trainer is not None and self.trainer.is_learner(self.locals["player"])

    def is_done(self) -> bool:
        """True if the latest step ended the episode."""
        return self.locals["game_env"].is_done()


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
        self.callbacks: Any = []
        self.game_registry: GameRegistry | None = None

    def get_game_registry(self) -> GameRegistry:
        """The games that `playpen run` was given."""
        assert self.game_registry is not None, "`playpen run` sets it"
        return self.game_registry

    @abc.abstractmethod
    def learn(self, game_registry: GameRegistry) -> None:
        """Train the learner."""

    def add_callback(self, callback: BaseCallback) -> None:
        """Add a callback."""
        callback.trainer = self
        self.callbacks.append(callback)

    def is_learner(self, player: Model | SeatedPlayer | BranchingPlayer) -> bool:
        """True for the learner, and for it in a seat."""
        return (player if isinstance(player, Model) else player.model) is self.learner

    def is_teacher(self, player: Model | SeatedPlayer | BranchingPlayer) -> bool:
        """True for the teacher, and for it in a seat."""
        return (player if isinstance(player, Model) else player.model) is self.teacher

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

    def _collect_rollouts(
        self,
        game_env: GameEnv | GameBranchingEnv,
        rollout_steps: int | None,
        rollout_buffer: RolloutBuffer | None = None,
    ) -> None:
        """Plays so many steps of an environment, one by one; the last episode may be unfinished.

        None: as many as its `task_iterations` have. Raises InputError for None without those.
        """
        env = game_env.env if isinstance(game_env, GameBranchingEnv) else game_env
        if rollout_steps is None and env.task_iterations is None:
            raise InputError("rollout_steps=None has no end; needed: a number, or task_iterations of the environment")
        for callback in self.callbacks:
            callback.on_rollout_start(game_env, self.num_timesteps)
        buffer = rollout_buffer or RolloutBuffer(game_env)
        before, last = self.num_timesteps, None if rollout_steps is None else self.num_timesteps + rollout_steps
        while last is None or self.num_timesteps < last:
            self._step(game_env, buffer)
            if game_env.is_done():
                self._tell_episode(game_env, before)
                before = self.num_timesteps
                buffer.on_done()
                try:
                    game_env.reset()
                except StopIteration:
                    break
        for callback in self.callbacks:
            callback.on_rollout_end()

    def _step(self, game_env: Any, buffer: RolloutBuffer) -> None:
        player, context = game_env.observe()
        response = player(context)
        done, info = game_env.step(response)
        self.num_timesteps += 1
        buffer.on_step(context, response, done, info)
        seen = {"player": player, "context": context, "response": response, "done": done, "info": info}
        for callback in self.callbacks:
            callback.locals = {**seen, "game_env": game_env}
            callback.on_step()

    def _tell_episode(self, game_env: GameEnv | GameBranchingEnv, before: int) -> None:
        found = [env.records() for env in game_env.branches()]
        for callback in self.callbacks:
            if isinstance(game_env, GameEnv):
                callback.on_episode(game_env.task, found[0], before)
            else:
                callback.on_branches(game_env.task, found, before)


class GameRecordCallback(BaseCallback):
    """Writes each episode below FOLDER/PAIR/rollout0001/GAME, where an episode's number is that of its last reply."""

    def __init__(self, top_dir: str | Path = RECORDS) -> None:
        self.top_dir = Path(top_dir)
        self.rollout = 0
        self.game = ""

    @property
    def players(self) -> list[Model]:
        """Those of the trainer."""
        assert self.trainer is not None, "a callback is added to a trainer"
        return self.trainer.players

    def on_rollout_start(self, game: Game | GameEnv | GameBranchingEnv, num_timesteps: int) -> None:
        """Begin a folder for the rollout."""
        self.rollout += 1
        self.game = game.spec.name
        write_players(self.top_dir / Model.to_identifier(self.players), self.players)

    def on_episode(self, task: GameTask, records: Records, num_timesteps: int) -> None:
        """Write the episode."""
        number = num_timesteps + replies_in(records)
        write_episode(self._folder(task) / f"episode_{number}", task.instance, records)

    def on_branches(self, task: GameTask, branches: Sequence[Records], num_timesteps: int) -> None:
        """Write each branch in a folder of the episode's, whose number is that of its longest branch."""
        number = num_timesteps + max(replies_in(records) for records in branches)
        for place, records in enumerate(branches):
            write_episode(self._folder(task) / f"episode_{number}" / f"branch_{place}", task.instance, records)

    def _folder(self, task: GameTask) -> Path:
        """The experiment's, with its file."""
        names = (f"rollout{self.rollout:04d}", self.game, task.folder.split("/")[0])
        folder = self.top_dir / Model.to_identifier(self.players) / Path(*names)
        write_experiment(folder, self.game, task.experiment, self.players)
        return folder


class RolloutProgressCallback(BaseCallback):
    """Says how many of a rollout's steps were played, at each tenth of them."""

    def __init__(self, rollout_steps: int) -> None:
        self.rollout_steps, self.steps = rollout_steps, 0

    def on_rollout_start(self, game: Game | GameEnv | GameBranchingEnv, num_timesteps: int) -> None:
        """Count from 0."""
        self.steps = 0

    def on_step(self) -> None:
        """Count a step."""
        self.steps += 1
        if self.steps % max(1, self.rollout_steps // 10) == 0:
            say(f"{self.steps} of {self.rollout_steps} steps collected")


def replies_in(records: Records) -> int:
    """Number of the players' replies in an episode."""
    turns = (records.interactions or {}).get("turns", [])
    return sum(event["from"] != "GM" for turn in turns for event in turn)


def open_games(registry: GameRegistry, names: Sequence[str] = ()) -> list[Game]:
    """The games of these names to train on; without names those that the user chose, or `GameRegistry.to_play`."""
    specs = [spec for name in names for spec in registry.select(name)] if names else registry.to_play()
    return [open_game(spec, for_training=True) for spec in specs]


def all_tasks(games: Sequence[Game], most: int | None = None) -> list[tuple[Game, GameTask]]:
    """The instances of games, at most `most` of each."""
    return [(game, task) for game in games for task in tasks_of(game)[:most]]
