"""Trainers to begin with: a subclass says how it learns from the episodes that were collected.

    from playpen.starters.branching_trainer import BranchingPlayPenTrainer

    class Mine(BranchingPlayPenTrainer):
        def _train(self):
            pairs = self.episode_buffer.to_preference_dataset(self.learner)

In a game of two players the teacher has the first seat and the learner the second.
"""

import abc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers import result_files
from lmgym.apps.playpen.trainers.base import RECORDS, BasePlayPen
from lmgym.apps.playpen.trainers.buffers import BranchingEpisodeBuffer, EpisodeBuffer
from lmgym.apps.playpen.trainers.game_runs import (
    BranchingEpisodeBufferCallback,
    Condition,
    EpisodeBufferCallback,
    GameBenchmark,
    GameBenchmarkCallbackList,
    GameInstances,
)
from lmgym.apps.playpen.trainers.runners import batchwise, branching, sequential


class StarterTrainer(BasePlayPen):
    """Plays `game`, or the games of -g, for `num_epochs`, and after each calls `_train`."""

    game = "taboo"
    num_epochs = 1
    records, stores_branches = RECORDS, False
    buffer_kind: Any = EpisodeBuffer
    callback_kind: Any = EpisodeBufferCallback

    def __init__(self, learner: Model, teacher: Model | None = None) -> None:
        super().__init__(learner, teacher)
        models = self.players_in_order
        folder = result_files.EpochResultsFolder(Path(self.records), Model.to_identifier(models))
        infos = Model.to_infos(models)
        self.episode_buffer = self.buffer_kind()
        self.callbacks = GameBenchmarkCallbackList([
            self.callback_kind(self.episode_buffer),
            result_files.EpochResultsFolderCallback(folder),
            result_files.InstanceFileSaver(folder),
            result_files.ExperimentFileSaver(folder, player_model_infos=infos),
            result_files.InteractionsFileSaver(folder, player_model_infos=infos, store_branches=self.stores_branches),
        ])  # fmt: skip

    @property
    def players_in_order(self) -> Sequence[Model]:
        """The models by seat."""
        return [self.learner] if self.teacher is None else [self.teacher, self.learner]

    def learn(self, game_registry: GameRegistry) -> None:
        """Play, and learn."""
        specs = game_registry.specs if game_registry.is_chosen else game_registry.select(self.game)
        with GameBenchmark.load_from_spec(specs) as game_benchmark:
            instances = GameInstances.from_game_spec(specs)
            for _ in range(self.num_epochs):
                self.episode_buffer.reset()
                self._collect_episodes(game_benchmark, instances)
                self._train()

    @abc.abstractmethod
    def _collect_episodes(self, game_benchmark: GameBenchmark, game_instances: GameInstances) -> None:
        """Play each instance once."""

    @abc.abstractmethod
    def _train(self) -> None:
        """Learn from `episode_buffer`."""


class SequentialPlayPenTrainer(StarterTrainer):
    """One game after the other."""

    def _collect_episodes(self, game_benchmark: GameBenchmark, game_instances: GameInstances) -> None:
        sequential.run(game_benchmark, game_instances, self.players_in_order, self.callbacks)


class BatchwisePlayPenTrainer(StarterTrainer):
    """Several games together."""

    batch_size = 8

    def _collect_episodes(self, game_benchmark: GameBenchmark, game_instances: GameInstances) -> None:
        batchwise.run(game_benchmark, game_instances, self.players_in_order, self.callbacks, batch_size=self.batch_size)


class BranchingPlayPenTrainer(StarterTrainer):
    """Games that branch at the learner's turns."""

    branching_factor = 2
    records, stores_branches = f"{RECORDS}-branching", True
    buffer_kind, callback_kind = BranchingEpisodeBuffer, BranchingEpisodeBufferCallback

    def __init__(self, learner: Model, teacher: Model | None = None) -> None:
        super().__init__(learner, teacher)
        self.branching_condition: Condition | None = branching.is_player_model(self.learner)

    def _collect_episodes(self, game_benchmark: GameBenchmark, game_instances: GameInstances) -> None:
        branching.run(
            game_benchmark,
            game_instances,
            self.players_in_order,
            self.callbacks,
            branching_factor=self.branching_factor,
            branching_condition=self.branching_condition,
        )
