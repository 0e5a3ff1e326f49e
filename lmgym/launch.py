"""How an experiment ends: a user's error in one line and exit code 2, everything else as it is."""

from collections.abc import Callable

from lmgym.errors import InputError
from lmgym.override import leave


def launch(main: Callable[[], None]) -> None:
    """Runs `main`; an InputError is printed by rank 0 alone and every rank exits with 2."""
    try:
        main()
    except InputError as error:
        leave(error)
