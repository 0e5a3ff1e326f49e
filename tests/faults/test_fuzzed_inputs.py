"""Commands on damaged files end as usual or are refused in a line; `fuzz.py` says what else is a fault."""

from pathlib import Path

import pytest
from forked import Ended
from fuzz import MESSAGE, faults
from launching import launch, run

FUZZ = Path(__file__).parent / "fuzz.py"
SEED, QUICK, ALL, BLOCK = 0, 32, 1000, 250
QUICK_KINDS = ("transcripts", "NYU's debates", "questions", "static rows", "playpen's results", "DeepSpeed files",
               "task setups", "headers")  # fmt: skip


def fuzz(*words: str) -> str:
    """The output of the fuzzer; AssertionError with it if a case has a fault."""
    done = run(launch("fork", f"--seed={SEED}", *words, script=FUZZ), seconds=3600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_damaged_files_wrong_setups_and_odd_headers_are_used_or_refused_in_a_line() -> None:
    said = fuzz(f"--files={QUICK}", *(f"--kind={kind}" for kind in QUICK_KINDS))
    assert "'refused'" in said
    assert "'used'" in said


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, ALL, BLOCK))
def test_a_thousand_damaged_files_of_all_kinds_are_used_or_refused_in_a_line(first: int) -> None:
    assert "'refused'" in fuzz(f"--first={first}", f"--files={BLOCK}")


def ended(code: int = 2, out: str = "", err: str = "error: x is 1; needed: 2\n") -> Ended:
    return Ended(code, 1.0, 1.0, out, err)


def test_an_end_with_one_line_is_no_fault() -> None:
    assert faults(ended()) == []
    assert faults(ended(0, "a table\n", "")) == []


@pytest.mark.parametrize(
    ("how", "fault"),
    [
        (ended(1, err="Traceback (most recent call last):\nValueError: x\n"), "a traceback: ValueError: x"),
        (ended(1, err=""), "exit code 1"),
        (ended(-11, err=""), "exit code -11"),
        (ended(-9, err=""), "hangs: 1 s"),
        (ended(err="nothing\n"), "without one line"),
        (ended(err="error: " + "x" * MESSAGE), "a message of 1,007 characters"),
        (ended(0, "warning: " + "x" * MESSAGE, ""), "a message of 1,009 characters"),
        (ended(err="error: \x1b[2J"), "not printable"),
    ],
)
def test_any_other_end_is_a_fault(how: Ended, fault: str) -> None:
    assert any(fault in found for found in faults(how))
