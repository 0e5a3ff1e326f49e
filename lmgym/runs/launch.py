"""How an experiment ends: a user's error, or a run that stopped by its own word, in one line with its exit code; a run
of a launcher's rank that succeeded, before the interpreter takes itself apart.
"""

import atexit
import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from lmgym.console import replace_unencodable, show_exception
from lmgym.errors import STORAGE_FULL, InputError, RunStopped, shown_path
from lmgym.runs.files import storage_error
from lmgym.runs.flags import exit_with_error

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
    replace_unencodable(sys.stdout)
    if sys.excepthook is sys.__excepthook__:  # not IPython's
        sys.excepthook = show_exception
    try:
        main()
    except (InputError, RunStopped) as error:
        _leave(error)
    except OSError as error:
        if not (refusal := _refusal(error)):
            raise
        _leave(refusal)
    succeeded.append(True)


def _refusal(error: OSError) -> InputError | RunStopped | None:
    """What a user is told of an error of the system that no defect of ours has caused."""
    if error.errno == errno.ENAMETOOLONG:
        return InputError(f"{error.strerror}: {shown_path(error.filename)}; needed: a path that there can be")
    if not (said := storage_error(error)):
        return None
    why = f"a file, or the output, could not be written ({said}); free space, then run the same command again"
    stopped = RunStopped(why, "failed", STORAGE_FULL)
    stopped.alone = True
    return stopped


def _leave(error: InputError | RunStopped) -> NoReturn:
    """Ends this process with the error's code, also where its output goes to a full disk: Python's own would be 120."""
    try:
        exit_with_error(error)
    except SystemExit:
        if _is_flushed():
            raise
    except OSError:  # so does what is said of the error
        pass
    os._exit(error.exit_code)


def _is_flushed() -> bool:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return False
    return True


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
