"""The scorer `world:SEED`: the hidden utility of that simulated world, for users of average taste."""

import re
from typing import TYPE_CHECKING

from lmgym.apps.world.app import one_line
from lmgym.apps.world.world import World
from lmgym.errors import MOST_SEED, InputError, shown

if TYPE_CHECKING:
    from lmgym.scoring.protocol import Scorer

WORLD = re.compile("world:([0-9]{1,10})")


def load(path: str) -> "Scorer":
    """The hidden utility of `world:SEED`. Raises InputError for other words."""
    return hidden_utility(World(read_world(path)))


def read_world(words: str) -> int:
    """The seed of a world named `world:SEED`. Raises InputError for other words."""
    if not (match := WORLD.fullmatch(words)) or int(match[1]) > MOST_SEED:
        raise InputError(
            f"{shown(words)} names no world; needed: world:SEED with the seed of `lmgym world`, such as world:0"
        )
    return int(match[1])


def hidden_utility(world: World) -> "Scorer":
    """The true utility of replies to users of average taste, which no trained scorer knows."""
    from lmgym.scoring.scorers import FunctionScorer  # imports torch, which naming a world does not need

    # as the app shows and logs them: on one line
    return FunctionScorer(
        lambda conversations, replies: world.utility(conversations, [one_line(reply) for reply in replies]).tolist()
    )
