"""Shared by games: reading a move from a reply, the words of a missing extra, and a random state kept apart."""

import importlib
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from lmgym.config import Range
from lmgym.errors import MOST_STEPS, InputError, did_you_mean, shown

MAX_STEPS = Range(1, MOST_STEPS)
FEW_IDS = 12


def import_extra(module: str, extra: str) -> ModuleType:
    """The module. Raises InputError with the pip command of the extra that has it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"this game needs {module} ({error}); needed: pip install 'lmgym[{extra}]'") from error


def missing_extra(module: str, extra: str) -> str:
    """The pip command of the extra that has a module; empty if the module is there."""
    try:
        import_extra(module, extra)
    except InputError:
        return f"pip install 'lmgym[{extra}]'"
    return ""


def unknown_id(name: str, known: Iterable[str], library: str) -> InputError:
    """The error for an id that a library does not have, with the nearest one, and all of a few."""
    known = list(known)
    ids = ", ".join(known) if len(known) <= FEW_IDS else f"its {len(known):,} ids"
    return InputError(f"{library} has no {shown(name)}; {did_you_mean(name, known)}needed: one of {ids}")


def choice_of(moves: Mapping[str, Any]) -> Callable[[str], Any]:
    """A reader of replies: the value of the one word of `moves` in a reply; None for a reply with none or several."""

    def read(reply: str) -> Any:
        found = moves.keys() & set(re.findall(r"[a-z]+", reply.lower()))
        return moves[found.pop()] if len(found) == 1 else None

    return read


@dataclass
class OwnRandomState:
    """The global random states (`random`, `numpy.random`) of one game, whose library draws from them.

    Without it, two games that are played side by side would take numbers from each other.
    """

    states: tuple[Any, Any] | None = field(default=None, repr=False)

    def seed(self, seed: int) -> None:
        """Begin the game's own sequence."""
        self.states = (
            random.Random(seed).getstate(),
            np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed))).get_state(),
        )

    @contextmanager
    def active(self) -> Iterator[None]:
        """The game's states are the global ones inside; the others come back after it."""
        assert self.states is not None, "seed() comes first"
        outside = random.getstate(), np.random.get_state()
        random.setstate(self.states[0])
        np.random.set_state(self.states[1])
        try:
            yield
        finally:
            self.states = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])
