"""Aids: estimates, previews, notes, reports, trackers and the like, which help with the work and never stop it.

`aid` marks the function of one. If it fails, its result is what stands for "unknown", and a line says which aid failed
and why; a run takes that line into its events.jsonl.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from lmgym.errors import InputError, RunStopped, one_line

P = ParamSpec("P")
T = TypeVar("T")
AIDS: dict[str, Callable[..., Any]] = {}
"""the function of each aid by its name"""
_said: set[str] = set()  # a line is said once in a run: an aid may fail at every update
_unrecorded: list[str] = []


def aid(
    name: str, unknown: Callable[[], Any] = lambda: None, refuses: bool = False, then: str = "the work goes on"
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator of a function whose exceptions become `unknown()` and a line, which ends in what happens `then`.

    The line names the aid, with the function's arguments where `name` has places of str.format for them. With `refuses`
    an InputError is raised all the same: it says that the user's settings cannot work.
    """

    def guard(function: Callable[P, T]) -> Callable[P, T]:
        assert name not in AIDS, f"two aids are called {name!r}"
        AIDS[name] = function

        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return AIDS[name](*args, **kwargs)
            except Exception as error:
                if isinstance(error, RunStopped) or (refuses and isinstance(error, InputError)):
                    raise
                why = one_line(f"{type(error).__name__}: {error}", 300)
                _tell(f"warning: {name.format(*args)} failed ({why}); {then}")
                return unknown()

        return guarded

    return guard


def _tell(line: str) -> None:
    from lmgym.console import say  # here: a process beside each rank imports this module, and prints nothing

    if line not in _said and os.environ.get("RANK", "0") == "0":
        _said.add(line)
        _unrecorded.append(line)
        say(line, error=True)


def failures(last: bool = False) -> list[str]:
    """The lines since they were asked for, for a run's record; after the `last` of a run, all may be said again."""
    found = list(_unrecorded)
    _unrecorded.clear()
    if last:
        _said.clear()
    return found
