"""The status line: its text, what it draws on a terminal, and what it prints where there is none."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from patience import PATIENCE

from lmgym.console import CleanConsole, clean_line, erase_live_line, say
from lmgym.report import status_line
from lmgym.report.status_line import StatusLine, StepTimes, clock, fitted


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that status lines see, in seconds, which a test sets."""
    seconds = [100.0]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: seconds[0])
    return seconds


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal of 60 columns."""
    monkeypatch.setattr(status_line, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    yield
    erase_live_line()


def drawn(written: str) -> list[str]:
    """The lines that were drawn one over the other; empty where the line was erased."""
    return [text.replace("\x1b[K", "") for text in written.split("\r")[1:]]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-3, "0:00"), (7.4, "0:07"), (59.7, "1:00"), (750, "12:30"), (3599.6, "1:00:00"), (90_061, "25:01:01")],
)
def test_a_duration_is_shown_as_a_clock_shows_it(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_parts_without_room_are_left_out_whole() -> None:
    parts = ["training: 3/10 updates", "0:07 left", "ALARM: the held-out loss rises", "loss 0.5"]
    assert fitted(parts, 79) == ", ".join(parts)
    assert fitted(parts, 60) == "training: 3/10 updates, 0:07 left, loss 0.5"
    assert fitted(parts, 5) == parts[0]


def test_the_line_has_the_activity_the_steps_the_time_left_and_the_figures(now, terminal, capsys) -> None:
    line = StatusLine("training", 1200, "updates")
    line.update(0, "evaluating")
    now[0] += 50
    line.begin(200)
    now[0] += 10
    line.update(300, "", ["1,024 tok/s", "loss 0.52"])
    now[0] += 30  # of the 90 that are left
    line.update()
    assert drawn(capsys.readouterr().err) == [
        "evaluating: 0/1,200 updates",
        "training: 300/1,200 updates, 1:30 left, 1,024 tok/s",  # no room for the loss
        "training: 300/1,200 updates, 1:00 left, 1,024 tok/s",
    ]


def test_a_line_is_drawn_a_few_times_a_second_and_at_once_where_the_activity_changes(now, terminal, capsys) -> None:
    line = StatusLine("training", 100, "updates")
    for update in range(1, 11):
        line.update(update)
        now[0] += 1 / 16
    line.update(doing="saving")
    line.update(doing="saving")
    found = drawn(capsys.readouterr().err)
    assert [text.partition(" updates")[0] for text in found] == [
        "training: 1/100", "training: 5/100", "training: 9/100", "saving: 10/100",
    ]  # fmt: skip


def test_what_is_printed_erases_the_line_first_and_the_end_of_the_block_too(terminal, capsys) -> None:
    with StatusLine("training", 9, "updates") as line:
        line.update(0)
        say("a note")
        line.update(doing="saving")
        CleanConsole(40).print("a table")
        line.update(doing="evaluating")
    found = capsys.readouterr()
    assert found.out == "a note\na table\n"
    assert drawn(found.err) == ["training: 0/9 updates", "", "saving: 0/9 updates", "", "evaluating: 0/9 updates", ""]


def test_a_long_or_hostile_activity_stays_on_its_line(terminal, capsys) -> None:
    name = "\x1b[31mmodel\n" + "x" * 100
    StatusLine(name, 9, "updates").update(1)
    [found] = drawn(capsys.readouterr().err)
    assert found == clean_line(name)[:59]


def test_without_a_terminal_nothing_is_printed_but_for_plain_lines_now_and_then(now, capsys) -> None:
    quiet = StatusLine("training", 100, "updates")
    plain = StatusLine("simulating", 100, "user-days", plain=True)
    other_rank = StatusLine("simulating", 100, "user-days", shown=False, plain=True)
    for done in range(1, 100):
        now[0] += 1.0
        for line in (quiet, plain, other_rank):
            line.update(done, figures=["policy 1 of 2"])
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines() == [
        f"simulating: {done}/100 user-days, {clock(100 - done)} left, policy 1 of 2" for done in (30, 60, 90)
    ]


def test_the_time_left_of_steps_follows_the_pace_of_this_machine(now) -> None:
    times = StepTimes([10.0, 20.0, 30.0, 40.0])
    assert (times.number, times.left(0)) == ("[1/4]", (10.0, 100.0))
    assert times.left(4) == (6.0, 96.0)
    assert times.left(15) == (0.0, 135.0)  # half as slow again as expected
    times.skip()
    assert (times.number, times.left(0)) == ("[2/4]", (20.0, 90.0))
    times.begin()
    now[0] += 60
    times.end()
    assert (times.number, times.left(0)) == ("[3/4]", (60.0, 140.0))  # twice as slow: (60 + 20) / (20 + 20)
    assert times.taken == [None, 60.0]


HERE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
COMMAND = ["-m", "lmgym.cli.main", "world", "--rows", "1000", "--output"]


def test_a_command_draws_its_line_on_a_terminal_and_leaves_it_clean(tmp_path) -> None:
    child = pexpect.spawn(sys.executable, [*COMMAND, "a"], cwd=str(tmp_path), encoding="utf-8", timeout=PATIENCE,
                          dimensions=(24, 80), env={**HERE, "TERM": "xterm"})  # fmt: skip
    child.logfile_read = io.StringIO()
    child.expect(pexpect.EOF)
    child.close()
    said = child.logfile_read.getvalue()
    assert child.exitstatus == 0
    assert "\rsimulating users: 0/1,000 rows of logs" in said
    assert "\x1b[?25l" not in said, "a run that is killed leaves the terminal with its cursor"
    assert said.rpartition("\r\x1b[K")[2].startswith("a: logs 1,000, gold 1,000")
    dumb = pexpect.run(
        f"{sys.executable} {' '.join(COMMAND)} b", cwd=str(tmp_path), env={**HERE, "TERM": "dumb"},
        encoding="utf-8", timeout=PATIENCE,
    )  # fmt: skip
    assert dumb.startswith("b: logs 1,000")


def test_a_pipe_gets_no_carriage_return(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, *COMMAND, "a"], cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=True,
        env=HERE,
    )  # fmt: skip
    assert done.stdout.startswith(b"a: logs 1,000")
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""
