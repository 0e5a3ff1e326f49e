"""Commands whose reader closes the pipe, as `head` does: they end quietly, and a run goes on."""

import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[3]
CONSOLE = """
from lmgym.console import CONSOLE, say
import time, sys
say("first")
time.sleep(0.5)
for number in range(3):
    say(number), say(number, error=True), CONSOLE.print("a table")
open("done", "w").close()
"""
OWN_PRINT = """
from lmgym.runs.launch import launch
import time
def main():
    print("first", flush=True)
    time.sleep(0.5)
    for _ in range(3):
        print("more", flush=True)
launch(main)
"""


def cut(command: list[str], folder: Path, lines: int = 1) -> tuple[int, str]:
    """(exit code, stderr) of a command whose stdout is closed once so many lines of it were read."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert process.stdout
    assert process.stderr
    for _ in range(lines):
        assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    return process.wait(PATIENCE), said


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "lmgym.cli.main", "train", "sft", "chat", "--help"],
        [str(ROOT / "lmgym/apps/games/experiments/taboo.py"), "--help"],
        ["-m", "lmgym.cli.main", "runs", str(ROOT)],
        ["-m", "lmgym.cli.main", "games", "list"],
        ["-c", "from lmgym.apps.playpen.commands import clem_main; clem_main()", "list", "models", "-v"],
    ],
    ids=["a command's help", "an experiment's help", "runs", "a table", "a console script"],
)
def test_a_command_is_quiet(words: list[str], tmp_path: Path) -> None:
    code, said = cut([sys.executable, *words], tmp_path, lines=0)  # a pipe holds more than these print
    assert said == ""
    assert code in (0, 1)


def test_what_prints_goes_on_without_its_reader(tmp_path: Path) -> None:
    code, said = cut([sys.executable, "-c", CONSOLE], tmp_path)
    assert (code, said) == (0, "0\n1\n2\n")
    assert (tmp_path / "done").exists()


def test_an_experiment_that_prints_by_itself_ends_as_other_programs_do(tmp_path: Path) -> None:
    assert cut([sys.executable, "-c", OWN_PRINT], tmp_path) == (141, "")


def test_a_closed_stdout_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -c 'from lmgym.console import say; say(1); say(2, error=True)' >&-",
        shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "2\n")
