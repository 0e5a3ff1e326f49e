"""Code of users: every call of it goes through `users_code`, and files are imported by path.

Such code neither ends the process nor changes its state (lmgym/runs/process_state.py).
"""

import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from lmgym.console import VERBOSE, say
from lmgym.errors import InputError, RunStopped, one_line, shown_path
from lmgym.runs.process_state import process_state_kept

T = TypeVar("T")
LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, "<")
"""how the names of files begin that are no user's: installed packages, Python's own, and frozen ones"""
OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""how the names of lmgym's own files begin"""


def import_file(name: str | Path, needed: str) -> ModuleType:
    """The module of a Python file. Raises InputError, which ends in `needed`, for an absent file; and if it fails."""
    import hashlib  # and with it OpenSSL, which most commands do not need

    path = Path(os.path.expanduser(name))
    if not path.is_file():
        raise InputError(f"there is no file {shown_path(name)}; {needed}")
    # a name of its own, so that no file can shadow a module
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = spec_from_file_location(f"lmgym_file_{digest}", path.resolve())
    if spec is None or spec.loader is None:
        raise InputError(f"{shown_path(name)} is not a Python file; needed: one that ends in .py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    call_user_code(shown_path(name), lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    return module


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """Around a call of users' code, such as "the environment's constructor"; its exceptions stay what they are.

    Raises InputError if it ends the process by sys.exit or os._exit, which would seem to be a good end.
    """
    try:
        with process_state_kept():
            yield
    except SystemExit as error:
        found = f"{what} calls exit({error.code}) in {place_of(error)}"
        raise InputError(f"{found}; needed: code that returns, or raises an error") from error


def call_user_code(what: str, call: Callable[[], T]) -> T:
    """The result of `call`. An exception of the user's code becomes an InputError with its file and line.

    With LMGYM_VERBOSE=1 its traceback is printed too.
    """
    try:
        with users_code(what):
            return call()
    except (InputError, RunStopped):
        raise
    except Exception as error:
        raise failure(what, error) from error


def failure(what: str, error: Exception) -> InputError:
    """An exception of the user's code in one line, with its file and line; its traceback is printed if VERBOSE."""
    if VERBOSE:
        say(traceback.format_exc(), error=True)
    place = "" if isinstance(error, SyntaxError) else place_of(error)
    message = one_line(f"{type(error).__name__}: {error}", 1000)
    return InputError(f"{what} failed: {message}{place and f' ({place})'}{_package_needed(error)}")


def _package_needed(error: Exception) -> str:
    """The command that installs a package that is not there."""
    module = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f"; needed: pip install {distribution_of(module)}, or the folder that holds {module}" if module else ""


def distribution_of(module: str) -> str:
    """The package that pip installs for a module: scikit-learn for sklearn, as far as it is installed here."""
    from importlib.metadata import packages_distributions  # 20 ms, which --help does without

    return next(iter(packages_distributions().get(module, ())), module)


def place_of(error: BaseException) -> str:
    """The file and line that raised an error: the last of the user's, else of no library's, if any; empty for none."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    users = [frame for frame in own if not frame.filename.startswith(OURS)]
    last = (users or own or frames)[-1:]
    return f"{last[0].filename}, line {last[0].lineno}" if last else ""
