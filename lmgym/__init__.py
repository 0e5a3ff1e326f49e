"""The core that all stages share, the apps above the stages, and the `lmgym` command.

Where a package that lmgym needs is not installed, as with a Python other than that of its environment, an entry point
ends in one line with the command to type: whatever is run imports this module first.
"""

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

__version__ = "0.1.0"

NEEDED = ("click", "rich", "tyro", "torch", "transformers", "deepspeed")
"""packages of which at least one is missing where lmgym is not installed"""


def show_missing_package(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook`: one line for a package that is not installed, and Python's traceback for all else."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or error.name.partition(".")[0] == __name__:
        sys.__excepthook__(kind, error, trace)
        return
    folder = Path(__file__).parents[1]
    activate, here = folder / ".venv/bin/activate", "" if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    if activate.is_file() and Path(sys.prefix).resolve() != (folder / ".venv").resolve():
        command = f"source {shlex.quote(os.path.relpath(activate) if not here else str(activate))}"
    elif (folder / "requirements.txt").is_file():
        in_venv = sys.prefix != sys.base_prefix
        make = "" if in_venv else "python3 -m venv .venv && source .venv/bin/activate && "
        command = f"{here}{make}pip install -r requirements.txt -e ."
    else:
        command = "pip install lmgym"
    print(f"error: {sys.executable} has no package {error.name}; needed: {command}", file=sys.stderr)


if sys.excepthook is sys.__excepthook__ and not all(map(find_spec, NEEDED)):
    sys.excepthook = show_missing_package
