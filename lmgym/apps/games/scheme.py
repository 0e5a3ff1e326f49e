"""`--environment games:NAME`: a game of `lmgym games list`, its other players by scripts."""

from typing import Any

from lmgym.apps.games.ladder import GAMES, find_game
from lmgym.environments.named import NamedEnvironment, Scheme, Settings, refuse_settings
from lmgym.generation.protocol import ScriptedGenerator


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """A game, whose episodes differ by their seeds. Raises InputError for an unknown one, and without its library."""
    game = find_game(name)
    refuse_settings(f"games:{name}", settings, ())
    game.environment(tokenizer)  # without its extra it is refused before anything is loaded
    return NamedEnvironment(
        f"games:{name}",
        lambda: game.environment(tokenizer),
        players={agent: ScriptedGenerator(script) for agent, script in game.opponents.items()},
        reference_lines=game.reference_lines,
        about=game.about,
    )


SCHEME = Scheme("games:NAME", "games with the returns of scripted players", load, lambda: GAMES, is_own=True)
