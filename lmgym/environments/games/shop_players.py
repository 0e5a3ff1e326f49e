"""Scripted players of the tool-use game; they write plain calls or JSON ones, as the game asks."""

import json

import numpy as np

from lmgym.environments.games.shop import MOST_PIECES, MOST_PRICE, Shop
from lmgym.environments.protocol import Observation


def guess_the_total(game: Shop, seen: Observation, rng: np.random.Generator) -> str:
    """A random total, without a tool."""
    return f"answer {rng.integers(2, 2 * MOST_PIECES * MOST_PRICE + 1)}"


def without_prices(game: Shop, seen: Observation, rng: np.random.Generator) -> str:
    """The likeliest total of this order if prices are unknown: each is the mean."""
    return f"answer {round(sum(pieces for pieces, _ in game.order) * (1 + MOST_PRICE) / 2)}"


def use_the_tools(game: Shop, seen: Observation, rng: np.random.Generator) -> str:
    """Look both prices up, calculate, answer."""
    results = [turn.text for turn in game.turns[1:] if turn.speaker != "bot"]
    if len(results) < len(game.order):
        return _call(game, "look_up", "item", game.order[len(results)][1])
    if len(results) == len(game.order):
        parts = [f"{pieces} * {price}" for (pieces, _), price in zip(game.order, results, strict=True)]
        return _call(game, "calculate", "expression", " + ".join(parts))
    return f"answer {results[-1]}"


def _call(game: Shop, name: str, argument: str, value: str) -> str:
    if game.has_tools:
        return json.dumps({"name": name, "arguments": {argument: value}})
    return f"{name.replace('_', ' ')} {value}"
