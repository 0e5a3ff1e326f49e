"""The end of a rank: with 0 although the interpreter's own exit would abort it, after its exit handlers and threads."""

import os
import signal
import subprocess
import sys

import pytest
from patience import PATIENCE

# what goes wrong at the end of a rank, and what must still happen there
RANK = """
import atexit, os, sys, threading, time
from lmgym.runs.launch import launch

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


def test_an_error_after_the_run_is_not_taken_for_success():
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


@pytest.mark.parametrize("deaf", ["stdout", "stderr"])
@pytest.mark.parametrize("code", [2, 74])
def test_a_run_whose_output_goes_to_a_full_disk_keeps_its_exit_code(deaf, code):
    script = (
        "from lmgym.errors import InputError, RunStopped\nfrom lmgym.runs.launch import launch\n"
        "def main():\n"
        "    print('a plan')\n"
        f"    raise InputError('mend this') if {code} == 2 else RunStopped('full', 'failed', {code})\n"
        "launch(main)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full, open(os.devnull, "w") as other:
        streams = {"stdout": other, "stderr": other} | {deaf: full}
        done = subprocess.run([sys.executable, "-c", script], timeout=PATIENCE, env=environment, **streams)
    assert done.returncode == code


def test_output_to_a_full_disk_ends_a_run_like_any_other_full_disk():
    script = "from lmgym.runs.launch import launch\nlaunch(lambda: print('a plan', flush=True))\n"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script], timeout=PATIENCE, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 74
    assert "error: a file, or the output, could not be written ([Errno 28] No space left on device)" in done.stderr
    assert "Traceback" not in done.stderr


FILES = """
import resource
from lmgym.runs.launch import launch

def main():
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
    try:
        kept = [open("/dev/null") for _ in range(99)]
    except OSError as error:
        RAISE

launch(main)
"""


@pytest.mark.parametrize(
    "words",
    ["raise", "raise RuntimeError('weights') from error", "raise RuntimeError('x: Too many open files (os error 24)')"],
)
def test_too_many_open_files_end_in_one_line(words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FILES.replace("RAISE", words)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert done.stderr == (
        "error: more files are open than the 24 that this process may have; raise it with ulimit -n 65536\n"
    )
