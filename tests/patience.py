"""The time that tests wait for what a working program does, however busy the machine.

PATIENCE is the limit of a hang. Where a broken program would do the same later (end by itself, let go of a thread), a
test names the seconds that tell the two apart.
"""

import time
from collections.abc import Callable

PATIENCE = 560.0
"""seconds; a command of a user's may run for 600 here"""


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Polls until it holds. Raises AssertionError where it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)
