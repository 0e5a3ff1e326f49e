"""Runs an experiment's `main` and ends its process: errors in one line with their exit code, launched ranks cleanly."""

import atexit
import errno
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from lmgym.console import print_to_nowhere, readers_left, replace_unencodable, show_exception
from lmgym.errors import STORAGE_FULL, InputError, RunStopped, ServerError, shown_path, too_many_files
from lmgym.runs.files import files_error, storage_error
from lmgym.runs.flags import exit_with_error
from lmgym.runs.process_state import end_process

STAGES = {"reward": "reward_models", "sft": "sft", "preference": "preferences", "ppo": "ppo"}
"""packages by their name in `lmgym train`"""

READER_LEFT = 141
"""exit code of programs that SIGPIPE ends, as shells give it"""

_launched = False


def ends_process() -> bool:
    """True if this process ends after `launch`, and does not continue as a notebook does."""
    return _launched


def launch(main: Callable[[], object]) -> None:
    """Runs `main`, as the last statement of a script.

    Prints a user's error on rank 0 only, and exits with its code on every rank.
    """
    global _launched
    _launched = True
    # registered before `main` imports libraries: exit handlers run in reverse order, so theirs run first
    succeeded: list[bool] = []
    atexit.register(lambda: _end_rank() if succeeded else None)
    replace_unencodable(sys.stdout)
    if sys.excepthook is sys.__excepthook__:  # not IPython's
        sys.excepthook = show_exception
    try:
        main()
    except (InputError, RunStopped, ServerError) as error:
        _exit(error)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and (left := readers_left()):  # where a user's own code printed
            for stream in left:
                print_to_nowhere(stream)
            raise SystemExit(READER_LEFT) from None
        if not (user_error := _user_error(error)):
            raise
        _exit(user_error)
    except Exception as error:
        if not files_error(error):
            raise
        _exit(too_many_files())
    succeeded.append(True)


def _user_error(error: OSError) -> InputError | RunStopped | None:
    """The user's error behind an error of the operating system; None if it may be a defect of ours."""
    if error.errno == errno.ENAMETOOLONG:
        return InputError(f"{error.strerror}: {shown_path(error.filename)}; needed: a shorter path")
    if files_error(error):
        return too_many_files()
    if not (cause := storage_error(error)):
        return None
    why = f"a file, or the output, could not be written ({cause}); free space, then run the same command again"
    stopped = RunStopped(why, "failed", STORAGE_FULL)
    stopped.alone = True
    return stopped


def _exit(error: InputError | RunStopped | ServerError) -> NoReturn:
    """Exits with the error's code, even if the output goes to a full disk, for which Python's code would be 120."""
    try:
        try:
            exit_with_error(error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except OSError:
        end_process(error.exit_code)


def _end_rank() -> None:
    """Exits a rank with 0 after the exit handlers, but before the interpreter's own cleanup.

    A process group to which DeepSpeed still refers keeps its threads, and if one releases a tensor while the
    interpreter exits, the process aborts (pytorch/pytorch#190489): the launcher would report a good run as failed.
    """
    raised = hasattr(sys, "last_value")  # by the script, after `launch`
    if "RANK" in os.environ and not raised:
        sys.stdout.flush()
        sys.stderr.flush()
        end_process(0)
