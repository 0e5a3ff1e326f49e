"""Several games together, the turns of each model as one request."""

from collections.abc import Sequence
from typing import Any

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.trainers.game_runs import GameBenchmark, GameInstances, play_instances


def run(
    game_benchmark: GameBenchmark,
    game_instances: GameInstances,
    player_models: Sequence[Model | None],
    callbacks: Any = None,
    batch_size: int = 8,
) -> None:
    """Plays each instance once, `batch_size` at a time."""
    play_instances(game_benchmark, game_instances, player_models, callbacks, at_once=batch_size)
