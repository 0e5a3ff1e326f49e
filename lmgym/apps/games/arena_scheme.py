"""`--environment textarena:ID?players=N`: any game of textarena, all of its players the policy, or one of them."""

import io
from contextlib import redirect_stdout, suppress
from typing import Any

from lmgym.apps.games.replies import import_extra, missing_extra
from lmgym.apps.games.text_arena import LEGAL, TextArena, random_moves
from lmgym.environments.named import NamedEnvironment, Scheme, Settings, refuse_settings
from lmgym.errors import InputError, did_you_mean, listed, shown
from lmgym.generation.protocol import ScriptedGenerator


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """A game for `players` (the fewest that it takes), of at most `max_steps` (200) moves.

    The policy is all players, or with `policy` one of them, as player_0, and the others make random legal moves, where
    the moves of a game are known. Raises InputError without textarena, and for what the game does not take.
    """
    words = f"textarena:{name}"
    refuse_settings(words, settings, ("players", "policy", "max_steps"))
    players, policy, steps = settings.get("players"), settings.get("policy", ""), settings.get("max_steps", 200)
    if players is not None and not (type(players) is int and players > 0):
        raise InputError(f"{words}: players={shown(players)}; needed: a number from 1 on")

    def environment() -> TextArena:
        return TextArena(name, players, max_steps=steps)

    first = environment()
    first.reset({}, 0)  # a number of players that it does not take is refused before anything is loaded
    if policy and policy not in first.agents:
        raise InputError(
            f"{words} has no player {shown(policy)}; {did_you_mean(str(policy), first.agents)}needed: one of "
            f"{listed(first.agents)}"
        )
    others = [agent for agent in first.agents if policy and agent != policy]
    legal = LEGAL.get(name.partition("-")[0])
    if others and legal is None:
        raise InputError(
            f"{words}: the legal moves of this game are not known, so {listed(others)} cannot be played at random; "
            f"needed: no policy=, or a game of {listed(LEGAL)}"
        )
    played = f", the others make random moves; at most {steps} moves" if others else f"; at most {steps} moves"
    return NamedEnvironment(
        words,
        environment,
        players={agent: ScriptedGenerator(random_moves(legal)) for agent in others} if legal else {},
        trained_agents=1 if policy else len(first.agents),
        about=f"the policy is {policy or listed(first.agents)}{played}",
    )


def names() -> list[str]:
    """The games that can be made here, of those with textarena's own settings."""
    if missing():
        return []
    found = []
    known = import_extra("textarena", "textarena").envs.registration.ENV_REGISTRY
    for name in (one for one in known if one.count("-") == 1):
        with suppress(Exception), redirect_stdout(io.StringIO()):  # of any package; some print
            load(name, {})
            found.append(name)
    return found


def missing() -> str:
    """The command that installs textarena; empty if it is there."""
    return missing_extra("textarena", "textarena")


SCHEME = Scheme("textarena:ID", "any game of textarena, for one player or several", load, names, missing)
