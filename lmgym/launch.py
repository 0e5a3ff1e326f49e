"""How an experiment ends: a user's error in one line and exit code 2, everything else as it is."""

import os
import sys
import time
from collections.abc import Callable

from lmgym.errors import InputError
from lmgym.override import HEAD_START_SECONDS


def launch(main: Callable[[], None]) -> None:
    """Runs `main`; an InputError is printed by rank 0 alone and every rank exits with 2."""
    try:
        main()
    except InputError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        else:
            time.sleep(HEAD_START_SECONDS)  # a launcher kills the others once one exits: rank 0 speaks first
        raise SystemExit(2) from None
