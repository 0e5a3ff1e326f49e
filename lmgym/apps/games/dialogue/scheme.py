"""`--environment dialogue:GAME/ROLE`: a role of a dialogue game, scripted winners in the others."""

from itertools import chain
from typing import Any

from lmgym.apps.games.dialogue.games import GAMES, INSTANCES
from lmgym.apps.games.dialogue.instances import NUMBER, VALIDATION
from lmgym.environments.named import NamedEnvironment, Scheme, Settings, refuse_settings
from lmgym.errors import InputError, shown
from lmgym.generation.protocol import ScriptedGenerator


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """A role, which may be left out of a game with one. Instances to train on follow from the seeds of episodes.

    `instances` (10) held-out ones of each experiment are there to evaluate on, those of all experiments in turn. Raises
    InputError for another game or role, and for more instances than are held out.
    """
    from lmgym.apps.games.dialogue.syllables import find_game  # imports torch

    name, _, role = name.partition("/")
    game = find_game(name)
    if role not in game.roles and (role or len(game.roles) > 1):
        raise InputError(f"{name} has no role {shown(role)}; needed: dialogue:{name}/{' or /'.join(game.roles)}")
    words = f"dialogue:{name}/{role or game.roles[0]}"
    refuse_settings(words, settings, ("instances",))
    number = settings.get("instances", INSTANCES)
    NUMBER.check("instances", number)
    by_experiment = game.tasks(number, split=VALIDATION)
    others = [other for other in game.roles if other != (role or game.roles[0])]
    return NamedEnvironment(
        words,
        game.environment,
        eval_tasks=list(chain.from_iterable(by_experiment[i::number] for i in range(number))),
        players={other: ScriptedGenerator(game.script(other)) for other in others},
        about=game.about,
    )


def names() -> list[str]:
    """GAME/ROLE of each."""
    from lmgym.apps.games.dialogue.syllables import SMALL_GAMES

    return [f"{name}/{role}" for name, game in {**GAMES, **SMALL_GAMES}.items() for role in game.roles]


SCHEME = Scheme("dialogue:GAME/ROLE", "clembench's dialogue games, partners by scripts", load, names, is_own=True)
