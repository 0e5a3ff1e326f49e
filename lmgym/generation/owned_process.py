"""Runs a command until its owner asks for its end or is gone, then ends every process of its group.

A script, in a process between the two: `owned_process.py OWNER SECONDS COMMAND...`. A kill -9 of the owner gives the
owner no chance to end anything, and the kernel's own signal for it (PR_SET_PDEATHSIG) is sent when the thread that
started the command ends, not when its process does. It imports nothing of this package.
"""

import os
import signal
import subprocess
import sys
import time

POLL_SECONDS = 0.2


def main() -> None:
    """Waits for the command, the owner's end or SIGTERM; the command then has so many seconds before SIGKILL."""
    owner, seconds = int(sys.argv[1]), float(sys.argv[2])
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    process = subprocess.Popen(sys.argv[3:], stdin=subprocess.DEVNULL)
    while process.poll() is None and not asked and os.getppid() == owner:
        time.sleep(POLL_SECONDS)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
    os.killpg(0, signal.SIGKILL)  # this process leads the group, and ends with it


if __name__ == "__main__":
    main()
