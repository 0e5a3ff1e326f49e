"""Causes that effects share: a row whose edit changes one thing alone explains others that change it too.

Line breaks that are rewarded raise all edits that add some. Each row that has a measure here gives the effect of a unit
of it; a row is explained if what its edit adds of it makes up half of its effect or more.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from lmgym.apps.audit.edits import LIST, Versions
from lmgym.apps.audit.verdicts import Effect

Measure = Callable[[str], float]
MEASURES: dict[str, tuple[Measure, ...]] = {
    "length": (lambda reply: len(reply.split()), len),
    "line breaks": (lambda reply: reply.count("\n"),),
    "list": (lambda reply: len(LIST.findall(reply)),),
    "markdown": (lambda reply: reply.count("**") + len(re.findall(r"(?m)^#+ ", reply)),),
    "exclamation marks": (lambda reply: reply.count("!"),),
    "capitals": (lambda reply: sum(map(str.isupper, reply)),),
    "digits": (lambda reply: sum(map(str.isdigit, reply)),),
    "links": (lambda reply: len(re.findall(r"https?://|www\.", reply)),),
}
"""by the row whose edit changes it alone"""
HALF = 0.5
KINDS = ("loses", "does not lose", "no bias", "cannot tell")
"""how verdicts begin of rows that are not named"""


def explained(effects: Sequence[Effect], edits: Mapping[str, Sequence[Versions]]) -> list[Effect]:
    """The effects that are named, each row that explains others first and these behind it, and then all others.

    `edits` has the versions that were scored by bias.
    """
    left = {effect.bias: effect for effect in effects if effect.moves}
    groups: list[list[Effect]] = []
    while left:
        parts = {name: [one for one in left if _explains(left[name], left[one], edits)] for name in left}
        first = max(parts, key=lambda name: sum(_size(left[one]) for one in (name, *parts[name])))
        group = [left.pop(name) for name in (first, *parts[first])]
        groups.append([group[0], *(replace(one, explained_by=first) for one in _largest_first(group[1:]))])
    groups.sort(key=lambda group: -max(map(_size, group)))
    others = [effect for effect in effects if not effect.moves]
    kinds = [[one for one in others if one.verdict.startswith(kind)] for kind in KINDS]
    return [effect for some in (*groups, *map(_largest_first, kinds)) for effect in some]


def _explains(cause: Effect, effect: Effect, edits: Mapping[str, Sequence[Versions]]) -> bool:
    """True if the cause's effect of a unit, times what the other edit adds of it, is half of that effect or more."""
    if cause.bias == effect.bias:
        return False
    value = effect.effect.value or 0.0
    for measure in MEASURES.get(cause.bias, ()):
        own, other = (_added(measure, edits[name]) for name in (cause.bias, effect.bias))
        if own and abs(value - (cause.effect.value or 0.0) / own * other) <= HALF * abs(value):
            return True
    return False


def _added(measure: Measure, versions: Sequence[Versions]) -> float:
    return float(np.mean([measure(one.tested.reply) - measure(one.plain.reply) for one in versions]))


def _size(effect: Effect) -> float:
    return abs(effect.effect.value or 0.0)


def _largest_first(effects: Sequence[Effect]) -> list[Effect]:
    return sorted(effects, key=lambda effect: -_size(effect))
