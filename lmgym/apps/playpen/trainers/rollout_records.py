"""The episodes that a learner trains on, in files: FOLDER/PAIR/rollout0001/GAME/EXPERIMENT/episode_N."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lmgym.apps.games.dialogue.records import Records, write_episode
from lmgym.apps.playpen.episodes import write_experiment, write_players
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.trainers.base import RECORDS
from lmgym.environments.protocol import Task


@dataclass
class RolloutRecords:
    """Writes each episode of a LearningGame; so many are a rollout. Rollouts of earlier runs are kept."""

    players: Sequence[Model]
    episodes_per_rollout: int
    folder: Path = Path(RECORDS)
    episodes: int = 0
    earlier: int = -1
    """rollouts that were there before; -1 before the first episode"""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """of games in threads of their own"""

    def __call__(self, task: Task, records: Records) -> None:
        """Write the episode of a task of `learning_tasks`."""
        top = self.folder / Model.to_identifier(self.players)
        with self.lock:
            if self.earlier < 0:
                self.earlier = len(list(top.glob("rollout*")))
                write_players(top, self.players)
            rollout, number = divmod(self.episodes, self.episodes_per_rollout)
            self.episodes += 1
            folder = top / f"rollout{self.earlier + rollout + 1:04d}" / task["game"] / task["experiment"]["name"]
            if number == 0 or not folder.is_dir():
                write_experiment(folder, task["game"], task["experiment"], self.players)
        write_episode(folder / f"episode_{number}", task["instance"], records)
