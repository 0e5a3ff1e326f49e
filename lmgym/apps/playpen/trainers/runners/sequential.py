"""One game after the other."""

from collections.abc import Sequence
from typing import Any

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.trainers.game_runs import GameBenchmark, GameInstances, play_instances


def run(
    game_benchmark: GameBenchmark,
    game_instances: GameInstances,
    player_models: Sequence[Model | None],
    callbacks: Any = None,
) -> None:
    """Plays each instance once."""
    play_instances(game_benchmark, game_instances, player_models, callbacks)
