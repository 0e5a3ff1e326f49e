"""Spaces of Gymnasium as text, by rule: an observation in short, and an action out of a reply.

Design decisions:
- A reply is an action or it is none: nothing is guessed. Numbers must be as many as the space has, and whole where it
  has whole ones; a reply that names two different numbers is no action of a Discrete space.
- Observations have 4 significant digits; actions are read as they were written, exactly.
- Imported once Gymnasium is known to be there: see from_gymnasium.py.
"""

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces

MOST_LISTED = 1000
"""actions of a Discrete space that observations list: the list goes with each of them"""
NUMBERED = re.compile(r"[\w.+-]*[0-9][\w.+-]*")
"""a run of letters, digits, points and signs with a digit in it: a number, or something like `2nd`"""
NUMBER = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
ARRAYS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
PARTS = (spaces.Dict, spaces.Tuple)


def unreadable(space: Any, acts: bool = False) -> str:
    """The part of a space that cannot be text, such as "an image of 96 x 96 x 3"; empty if all of it can.

    `acts`: whether its values are to be read, not only shown.
    """
    if isinstance(space, PARTS):
        return next(filter(None, (unreadable(part, acts) for part in _parts(space).values())), "")
    if isinstance(space, spaces.Sequence) and not (acts or space.stack):
        return unreadable(space.feature_space)
    if _is_image(space):
        return f"an image of {' x '.join(map(str, space.shape))}"
    if isinstance(space, spaces.Discrete) or _is_text(space):
        return ""
    if isinstance(space, ARRAYS) and space.dtype.kind in "fiub":
        return ""
    return f"a {type(space).__name__}" + (f" of {space.dtype}" if isinstance(space, ARRAYS) else "")


def show(space: Any, value: Any) -> str:
    """An observation as text. Raises ValueError for one that has NaN in it, or is not of the space's kind."""
    if isinstance(space, spaces.Dict):
        return "\n".join(f"{name}: {_inline(part, _part(value, name))}" for name, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return _listed(space, value)
    if _is_text(space) and isinstance(value, str):
        return value
    return _inline(space, value)


def read(space: Any, reply: str) -> Any:
    """The action that a reply names; None if it names none of the space's, or several."""
    action: Any
    if _is_text(space):
        return next((text for text in (reply, reply.strip()) if space.contains(text)), None)
    if isinstance(space, PARTS):
        action = _from_json(space, _json_of(reply))
    elif isinstance(space, spaces.Discrete):
        several = re.search(r"[0-9],[0-9]", reply)  # 1,000 is one number or two
        named = set(_numbers(reply) or ())
        action = _from_json(space, named.pop()) if len(named) == 1 and not several else None
    else:
        action = _filled(space, _numbers(reply) or ())
    return action if action is not None and space.contains(action) else None


def write(space: Any, action: Any) -> str:
    """An action as the reply that `read` reads as this action."""
    return action if _is_text(space) else json.dumps(_plain(action))


def wanted(space: Any) -> str:
    """A sentence on what an action looks like, for the rules that a policy reads."""
    return f"Reply with {_words(space, inside=False)}."


def listed(space: Any, mask: Any = None) -> tuple[str, ...]:
    """The replies that are actions, of a Discrete space; empty for other spaces, and for one with too many.

    `mask[n]` is 1 for those that are legal now.
    """
    if not isinstance(space, spaces.Discrete) or space.n > MOST_LISTED:
        return ()
    numbers = np.arange(space.n) if mask is None else np.flatnonzero(mask)
    return tuple(map(str, (numbers + space.start).tolist()))


def _is_image(space: Any) -> bool:
    """Bytes in rows and columns."""
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) < 2:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def _is_text(space: Any) -> bool:
    """True of Text, and of other spaces whose values are texts by their dtype."""
    return isinstance(space, spaces.Text) or getattr(space.dtype, "kind", "") == "U"


def _parts(space: Any) -> dict[Any, Any]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))


def _part(value: Any, name: Any) -> Any:
    try:
        return value[name]
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"the observation has no {name!r}; needed: a value for each part of its space") from error


def _inline(space: Any, value: Any) -> str:
    """A value within a line."""
    if isinstance(space, spaces.Dict):
        return (
            "{"
            + ", ".join(f"{name}: {_inline(part, _part(value, name))}" for name, part in _parts(space).items())
            + "}"
        )
    if isinstance(space, spaces.Tuple):
        return f"({_listed(space, value)})"
    if isinstance(space, spaces.Sequence):
        return f"[{', '.join(_inline(space.feature_space, one) for one in value)}]"
    if _is_text(space):
        if not isinstance(value, str):
            raise ValueError(f"the observation has a {type(value).__name__}; needed: a text, as its space says")
        return json.dumps(value, ensure_ascii=False)
    return _figures(value, getattr(space, "shape", ()))


def _listed(space: Any, value: Any) -> str:
    return ", ".join(_inline(part, _part(value, i)) for i, part in _parts(space).items())


def _figures(value: Any, shape: tuple[int, ...]) -> str:
    """Numbers in brackets, row by row."""
    array = np.asarray(value)
    if array.shape != tuple(shape) or array.dtype.kind not in "fiub":
        raise ValueError(
            f"the observation has {array.dtype} of shape {array.shape}; needed: numbers of shape {tuple(shape)}, as "
            "its space says"
        )
    real = array.dtype.kind == "f"
    if real and np.isnan(array).any():
        raise ValueError("the observation has NaN; needed: numbers")
    array = array + 0.0 if real else array  # no -0
    return _template(array.shape, "%.4g" if real else "%d") % tuple(array.ravel().tolist())


@lru_cache
def _template(shape: tuple[int, ...], one: str) -> str:
    """A format for all numbers of an array."""
    return str(np.full(shape, one).tolist()).replace("'", "")


def _numbers(reply: str) -> list[int | float] | None:
    """The numbers of a reply in order; None if something with digits in it is no number."""
    runs = [run.rstrip(".") for run in NUMBERED.findall(reply)]
    try:
        found = [int(run) if run.lstrip("+-").isdecimal() else float(run) for run in runs if NUMBER.fullmatch(run)]
    except ValueError:  # of more digits than Python reads
        return None
    return found if len(found) == len(runs) and all(map(math.isfinite, found)) else None


def _filled(space: Any, numbers: Sequence[int | float]) -> Any:
    """An array of the space from its numbers in order; None if they are not as many, or not of its kind."""
    whole = space.dtype.kind != "f"
    if len(numbers) != math.prod(space.shape) or (whole and any(number != int(number) for number in numbers)):
        return None
    try:
        with np.errstate(over="ignore"):
            array = np.array([int(n) for n in numbers] if whole else numbers, space.dtype).reshape(space.shape)
    except OverflowError:
        return None
    return array if np.isfinite(array).all() else None


def _json_of(reply: str) -> Any:
    """The one JSON value in brackets of a reply; None for none, and for several that differ."""
    decoder, found, place = json.JSONDecoder(), list[Any](), 0
    while opening := re.compile(r"[\[{]").search(reply, place):
        try:
            value, place = decoder.raw_decode(reply, opening.start())
        except (ValueError, RecursionError):
            place = opening.end()
        else:
            found.append(value)
    return found[0] if found and all(value == found[0] for value in found) else None


def _from_json(space: Any, value: Any) -> Any:
    """The action that a JSON value is; None if it is none."""
    if isinstance(space, PARTS):
        parts = _parts(space)
        if isinstance(value, list) and isinstance(space, spaces.Tuple):
            value = dict(enumerate(value))
        if not isinstance(value, dict) or value.keys() != parts.keys():
            return None
        found = {name: _from_json(part, value[name]) for name, part in parts.items()}
        if any(one is None for one in found.values()):
            return None
        return found if isinstance(space, spaces.Dict) else tuple(found.values())
    if _is_text(space):
        return value if isinstance(value, str) else None
    if isinstance(space, spaces.Discrete):
        whole = type(value) in (int, float) and math.isfinite(value) and value == int(value)
        return int(value) if whole else None
    try:
        shape = np.shape(value)
    except ValueError:  # rows of different lengths
        return None
    flat = np.array(value, object).ravel().tolist()
    fits = shape == tuple(space.shape) and all(type(one) in (int, float) and math.isfinite(one) for one in flat)
    return _filled(space, flat) if fits else None


def _plain(action: Any) -> Any:
    """An action in JSON's types."""
    if isinstance(action, dict):
        return {name: _plain(part) for name, part in action.items()}
    if isinstance(action, tuple | list):
        return [_plain(part) for part in action]
    return action.tolist() if hasattr(action, "tolist") else action


def _words(space: Any, inside: bool = True) -> str:
    """An action in words; `inside` of JSON, texts are quoted and arrays are lists."""
    if isinstance(space, spaces.Dict):
        return (
            ("" if inside else "JSON: ")
            + "{"
            + ", ".join(f'"{n}": {_words(p)}' for n, p in _parts(space).items())
            + "}"
        )
    if isinstance(space, spaces.Tuple):
        return ("" if inside else "JSON: ") + "[" + ", ".join(map(_words, space.spaces)) + "]"
    if _is_text(space):
        return "a text in quotes" if inside else "a text"
    if isinstance(space, spaces.Discrete):
        return f"{'a' if inside else 'one'} whole number from {space.start} to {space.start + space.n - 1}"
    lows, highs = _bounds(space)
    ranges = [_range(low, high) for low, high in zip(lows.ravel().tolist(), highs.ravel().tolist(), strict=True)]
    kind = "number" if space.dtype.kind == "f" else "whole number"
    if not space.shape or (len(ranges) == 1 and not inside):
        return f"{'a' if inside else 'one'} {kind}{ranges[0]}"
    size = " x ".join(map(str, space.shape))
    if len(set(ranges)) == 1:
        text = f"{size} {kind}s{', each' * bool(ranges[0])}{ranges[0]}"
    else:
        text = f"{size} {kind}s:{','.join(ranges)}"
    return f"a list of {text}" if inside else text


def _bounds(space: Any) -> tuple[Any, Any]:
    """(lows, highs) of an array space."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, int), np.ones(space.shape, int)
    return space.start, space.start + space.nvec - 1


def _range(low: float, high: float) -> str:
    """The bounds of a number, where it has any."""
    least, most = (str(bound) if isinstance(bound, int) else f"{bound:.6g}" for bound in (low, high))
    if math.isinf(low) or math.isinf(high):
        return (f" of at least {least}" * math.isfinite(low)) + (f" of at most {most}" * math.isfinite(high))
    return f" from {least} to {most}"
