"""How a rank ends: with 0 though the interpreter's own end would abort it, its exit handlers and threads seen to."""

import os
import signal
import subprocess
import sys

import pytest
from patience import PATIENCE

# what goes wrong at the end of a rank, and what must still happen there
RANK = """
import atexit, os, sys, threading, time
from lmgym.launch import launch

class AbortsAtTheEnd:
    def __init__(self):
        self.abort = os.abort
    def __del__(self):
        self.abort()

def main():
    sys.kept = AbortsAtTheEnd()
    atexit.register(lambda: print("handler"))
    threading.Thread(target=lambda: (time.sleep(.3), print("thread"))).start()
    print("main")
    END

launch(main)
AFTER
"""


def end(words: str = "pass", after: str = "", **variables: str) -> subprocess.CompletedProcess:
    environment = {key: value for key, value in os.environ.items() if key != "RANK"} | variables
    code = RANK.replace("END", words).replace("AFTER", after)
    # a pipe, not a terminal: what was printed is lost unless it is flushed
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE
    )


def test_the_interpreter_alone_would_abort():
    assert end().returncode == -signal.SIGABRT


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_succeeded_ends_with_0_after_its_threads_and_exit_handlers(rank):
    done = end(RANK=rank)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["main", "thread", "handler"]


def test_what_a_script_raises_after_its_run_is_not_taken_for_success():
    done = end(after="1 / 0", RANK="0")
    assert done.returncode != 0
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("words", ["1 / 0", "sys.exit(3)"])
def test_a_failure_is_not_taken_for_success(words):
    assert end(words, RANK="0").returncode != 0


def test_an_error_of_the_users_keeps_its_code():
    done = end("from lmgym.errors import InputError; del sys.kept.__class__.__del__; raise InputError('no')", RANK="0")
    assert done.returncode == 2
    assert done.stderr == "error: no\n"
