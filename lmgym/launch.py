"""How an experiment ends: a user's error, or a run that stopped by its own word, in one line with its exit code; a run
of a launcher's rank that succeeded, before the interpreter takes itself apart.
"""

import atexit
import errno
import os
import sys
from collections.abc import Callable

from lmgym.console import bear_any_text, show_exception
from lmgym.errors import InputError, RunStopped, shown_path
from lmgym.override import leave

_under_way = False


def ends_process() -> bool:
    """Whether this process ends with what `launch` runs, rather than go on, as a notebook does."""
    return _under_way


def launch(main: Callable[[], None]) -> None:
    """Runs `main`, the last thing that a script does.

    A user's error is printed by rank 0 alone, and every rank exits with its code.
    """
    global _under_way
    _under_way = True
    # registered before `main` imports its libraries: exit handlers run last to first, so that theirs still run
    succeeded: list[bool] = []
    atexit.register(lambda: _end_rank() if succeeded else None)
    bear_any_text(sys.stdout)
    if sys.excepthook is sys.__excepthook__:  # not IPython's
        sys.excepthook = show_exception
    try:
        main()
    except (InputError, RunStopped) as error:
        leave(error)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        leave(InputError(f"{error.strerror}: {shown_path(error.filename)}; needed: a path that there can be"))
    succeeded.append(True)


def _end_rank() -> None:
    """Ends a rank with 0 once the exit handlers have run, without the interpreter's own end.

    A process group that DeepSpeed still refers to keeps its threads, and one that lets go of a tensor while the
    interpreter ends aborts the process (pytorch/pytorch#190489): a launcher would call a run failed that is whole.
    """
    raised = hasattr(sys, "last_value")  # by what the script did after all
    if "RANK" in os.environ and not raised:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
