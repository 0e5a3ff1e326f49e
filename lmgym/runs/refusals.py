"""The end of a program of a user's on an error that its user can fix: one line, with its exit code, as commands do.

Such errors stay exceptions that a program may catch: only those that nothing catches come here.
"""

import sys
from types import TracebackType

from lmgym.console import say, show_exception
from lmgym.errors import InputError, RunStopped
from lmgym.runs.flags import exit_with_error


def end_in_one_line() -> None:
    """Set `sys.excepthook`, unless another library has: IPython's, a debugger's."""
    if sys.excepthook in (sys.__excepthook__, show_exception):
        sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, InputError | RunStopped):
        show_exception(kind, error, trace)
    elif sys.flags.inspect or hasattr(sys, "ps1"):  # an interactive session goes on
        say(f"error: {error}", error=True)
    else:
        exit_with_error(error)  # Python ends with the code of a SystemExit that the hook raises
