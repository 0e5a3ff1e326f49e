"""Games that branch, one after the other, and conditions of where they do."""

from collections.abc import Sequence
from typing import Any

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.trainers.game_runs import Condition, GameBenchmark, GameInstances, play_instances
from lmgym.errors import InputError


def run(
    game_benchmark: GameBenchmark,
    game_instances: GameInstances,
    player_models: Sequence[Model | None],
    callbacks: Any = None,
    branching_factor: int = 1,
    branching_condition: Condition | None = None,
) -> None:
    """Plays each instance; each turn that the condition holds for, or each without one, branches so often."""
    if branching_factor < 1:
        raise InputError(f"branching_factor={branching_factor}; needed: 2 or more, or 1 for no branches")
    play_instances(
        game_benchmark,
        game_instances,
        player_models,
        callbacks,
        branching_factor=branching_factor,
        branching_condition=branching_condition,
    )


def is_player_model(model: Model | None) -> Condition:
    """The turns of a model."""
    return lambda player, **_: player.model is model


def is_player_role(*roles: str) -> Condition:
    """The turns of these roles, or of players of these names."""
    return lambda player, **_: player.game_role in roles or player.name in roles


def is_round(*rounds: int) -> Condition:
    """The turns of these rounds, counted from 0."""
    return lambda env, **_: env.game_master.current_round in rounds


def combined_condition(*conditions: Condition) -> Condition:
    """The turns for which all hold."""
    return lambda **given: all(condition(**given) for condition in conditions)
