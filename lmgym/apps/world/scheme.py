"""`--environment world:SEED`: conversations with the users of a simulated app, each further message worth 1."""

from typing import Any

import numpy as np

from lmgym.config import SEED
from lmgym.environments.named import NamedEnvironment, Scheme, Settings, refuse_settings

USERS, FIRST_USER, HELD_OUT = 4096, 1_000_000, 512


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """USERS users of a world, drawn by `population_seed` (0), of no A/B test of fewer than FIRST_USER users.

    The first HELD_OUT of them are there to evaluate on. Raises InputError for what names no world.
    """
    from lmgym.apps.world.app_conversation import AppConversation  # imports torch
    from lmgym.apps.world.scorer import read_world
    from lmgym.apps.world.streams import draw_population
    from lmgym.apps.world.world import World

    words = f"world:{name}"
    refuse_settings(words, settings, ("population_seed",))
    world, seed = World(read_world(words)), settings.get("population_seed", 0)
    SEED.check("population_seed", seed)
    population = draw_population(world, FIRST_USER + np.arange(USERS), seed)
    tasks = [{"user": int(number)} for number in population.numbers]
    return NamedEnvironment(
        words,
        lambda: AppConversation(world, population),
        tasks[HELD_OUT:],
        tasks[:HELD_OUT],
        about=f"an app's {USERS:,} simulated users; a further message of theirs is worth 1",
    )


SCHEME = Scheme(
    "world:SEED", "an app's simulated users, whose hidden utility is known", load, lambda: ["0"], is_own=True
)
