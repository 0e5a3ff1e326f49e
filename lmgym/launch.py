"""How an experiment ends: a user's error, or a run that stopped by its own word, in one line with its exit code."""

from collections.abc import Callable

from lmgym.errors import InputError, RunStopped
from lmgym.override import leave


def launch(main: Callable[[], None]) -> None:
    """Runs `main`; such an error is printed by rank 0 alone and every rank exits with its code."""
    try:
        main()
    except (InputError, RunStopped) as error:
        leave(error)
