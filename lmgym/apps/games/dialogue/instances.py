"""Instances that are drawn from a seed: different ones, held out from training by their key."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from lmgym.apps.games.dialogue.dialogue import Drawn
from lmgym.config import SEED, Range
from lmgym.errors import InputError, shown

TRAIN, VALIDATION = "train", "validation"
SPLITS = (TRAIN, VALIDATION)
HELD_OUT = 4  # one key in so many is of the validation split
NUMBER = Range(1, 100_000)
TRIES = 200  # for each instance, before there are taken to be no more

Draw = Callable[[np.random.Generator, str], Drawn]
"""an instance of the experiment of a name"""


def split_of(key: str) -> str:
    """The split of instances with this key, by its hash."""
    return VALIDATION if blake2b(key.encode(), digest_size=8).digest()[0] % HELD_OUT == 0 else TRAIN


def draw_instances(draw: Draw, experiment: str, number: int, seed: int, split: str = TRAIN) -> list[dict[str, Any]]:
    """So many different instances of a split, numbered by `game_id`; a function of the arguments.

    Raises InputError for an unknown split, and if the experiment has fewer.
    """
    NUMBER.check("number", number)
    SEED.check("seed", seed)
    if split not in SPLITS:
        raise InputError(f"split={shown(split)}; needed: {' or '.join(SPLITS)}")
    found = _different(draw, experiment, number, seed, split)
    if len(found) < number:
        found_number = f"{experiment} has {len(found)} different instances of the split {split}"
        raise InputError(f"{found_number}; needed: {number}, or a smaller number")
    return found


def _different(draw: Draw, experiment: str, number: int, seed: int, split: str) -> list[dict[str, Any]]:
    """Up to so many instances."""
    rng = np.random.default_rng(seed)
    found: dict[str, dict[str, Any]] = {}
    for _ in range(TRIES * number):
        if len(found) == number:
            break
        key, instance, held_out_by = draw(rng, experiment)
        if split_of(held_out_by or key) == split:
            found.setdefault(key, instance)
    return [{"game_id": i, **instance} for i, instance in enumerate(found.values())]


def instance_of(task: Mapping[str, Any], seed: int, draw: Draw, experiments: Sequence[str]) -> Mapping[str, Any]:
    """The task's instance; of a task without one, a training instance that follows from the seed."""
    if instance := task.get("instance"):
        return instance
    chosen = experiments[int(np.random.default_rng([1, seed]).integers(len(experiments)))]
    return _different(draw, chosen, 1, seed, TRAIN)[0]


def needed_fields(instance: Mapping[str, Any], game: str, names: Sequence[str]) -> list[Any]:
    """The values of an instance by name. Raises InputError for one of another game or version."""
    if missing := [name for name in names if name not in instance]:
        raise InputError(
            f"an instance of {game} has no {missing[0]}, but {', '.join(sorted(map(str, instance))) or 'nothing'}; "
            f"needed: {', '.join(names)}, as this version draws them"
        )
    return [instance[name] for name in names]
