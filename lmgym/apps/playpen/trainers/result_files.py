"""Records of games that a runner plays, in clemcore 3's layout, by its callbacks.

    FOLDER/RUN/epoch_00001/GAME/EXPERIMENT/experiment.json
    FOLDER/RUN/epoch_00001/GAME/EXPERIMENT/instance_00000/{instance,interactions,requests,scores}.json

A branch has a folder `branch_00000` of its own in its instance's, and of an episode that failed there is failure.json.
"""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from lmgym.apps.games.dialogue import records
from lmgym.apps.playpen.trainers.game_runs import GameBenchmark, GameBenchmarkCallback, Row
from lmgym.apps.playpen.trainers.stepping import GameEnv
from lmgym.runs.files import write_json


class ResultsFolder:
    """A folder in which each instance has one place."""

    def __init__(self, result_dir_path: str | Path, run_dir: str) -> None:
        self.results_dir_path, self.run_dir = Path(result_dir_path), run_dir

    def to_run_dir_path(self) -> Path:
        """The folder of the run."""
        return self.results_dir_path / self.run_dir

    def to_experiment_dir_path(self, game_master: GameEnv) -> Path:
        """The folder of an experiment."""
        return self.to_run_dir_path() / game_master.spec.name / str(game_master.experiment["name"])

    def to_instance_dir_path(self, game_master: GameEnv, game_instance: Row) -> Path:
        """The folder of an instance."""
        number = game_instance.get("game_id", game_master.task.number)
        name = f"{number:05d}" if isinstance(number, int) else str(number)
        return self.to_experiment_dir_path(game_master) / f"instance_{name}"


class EpochResultsFolder(ResultsFolder):
    """A folder in which each run of a benchmark has an epoch."""

    epoch_id = 0

    def increment_epoch_id(self) -> None:
        """Begin the next epoch."""
        self.epoch_id += 1

    def to_run_dir_path(self) -> Path:
        """The folder of the epoch."""
        return super().to_run_dir_path() / f"epoch_{self.epoch_id:05d}"


class EpochResultsFolderCallback(GameBenchmarkCallback):
    """Begins an epoch with each run."""

    def __init__(self, results_folder: EpochResultsFolder) -> None:
        self.results_folder = results_folder

    def on_benchmark_start(self, game_benchmark: GameBenchmark) -> None:
        """Begin an epoch."""
        self.results_folder.increment_epoch_id()


class InstanceFileSaver(GameBenchmarkCallback):
    """Writes instance.json."""

    def __init__(self, results_folder: ResultsFolder) -> None:
        self.results_folder = results_folder

    def on_game_start(self, game_master: GameEnv, game_instance: Row) -> None:
        """Write it."""
        folder = self.results_folder.to_instance_dir_path(game_master, game_instance)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / records.INSTANCE, dict(game_instance))


class ExperimentFileSaver(GameBenchmarkCallback):
    """Writes experiment.json."""

    def __init__(self, results_folder: ResultsFolder, player_model_infos: Any = None) -> None:
        self.results_folder, self.player_model_infos = results_folder, player_model_infos

    def on_game_start(self, game_master: GameEnv, game_instance: Row) -> None:
        """Write it."""
        names = {"game_name": game_master.spec.name, "player_models": self.player_model_infos}
        folder = self.results_folder.to_experiment_dir_path(game_master)
        records.write_experiment(folder, {**game_master.experiment, **names})


class InteractionsFileSaver(GameBenchmarkCallback):
    """Writes interactions.json, requests.json and scores.json; with `store_branches` those of each branch."""

    def __init__(
        self, results_folder: ResultsFolder, player_model_infos: Any = None, store_branches: bool = False
    ) -> None:
        self.results_folder, self.player_model_infos = results_folder, player_model_infos
        self.store_branches = store_branches
        self._numbers: dict[Path, count[int]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> "InteractionsFileSaver":
        return self  # the branches of an instance are numbered together

    def on_game_end(
        self,
        game_master: GameEnv,
        game_instance: Row,
        exception: Exception | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> None:
        """Write the files of an episode, or why it failed."""
        folder = self.results_folder.to_instance_dir_path(game_master, game_instance)
        if self.store_branches and game_master.branch:
            folder /= f"branch_{next(self._numbers.setdefault(folder, count())):05d}"
        records.write_episode(folder, game_instance, game_master.records())
