"""Runs on a terminal: their status line, and figures that are those of a run without one."""

import os
import pty
import select
import termios
from pathlib import Path

import pytest
from forking import Forked
from launching import ROOT, flags, launch, read_lines, run
from ppo_in_process import train_small

from lmgym.console import erase_live_line
from lmgym.report import status_line

SMALL = {
    "max_length": 128, "global_batch": 4, "micro_batch": 4, "max_updates": 12, "learning_rate": 1e-2, "warmup": 0,
    "log_updates": 1, "eval_updates": 4, "save_updates": -1, "tracking": "none", "precision": "fp32",
}  # fmt: skip


def figures(folder: Path) -> list[dict[str, float]]:
    """The metrics of a run, without those of its speed."""
    timed = ("time", "seconds", "per_second")
    return [
        {name: value for name, value in line.items() if not name.startswith("time") and not name.endswith(timed)}
        for line in read_lines(folder / "metrics.jsonl")
    ]


def on_terminal(command: list[object], columns: int) -> str:
    """The text that a command writes to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    with os.fdopen(theirs, "w") as terminal, os.fdopen(ours, "rb", buffering=0) as screen:
        ranks, _, *words = [str(word) for word in command[1:]]
        process = Forked(words, int(ranks), ROOT, os.environ | {"TERM": "xterm"}, terminal, terminal)
        said = b""
        while process.poll() is None or select.select([screen], [], [], 0)[0]:
            if select.select([screen], [], [], 0.02)[0]:
                said += screen.read(4096)
    assert process.poll() == 0, said[-3000:]
    return said.decode()


def test_a_training_shows_one_line_on_a_terminal_none_in_a_pipe_and_trains_alike(
    small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path, tmp_path: Path
) -> None:
    def command(kind: str, name: str) -> list[object]:
        data = {"model": small_models["llama"], "dataset": few_pairs, "eval_dataset": held_out_pairs}
        return launch(kind, *flags(**data, **SMALL, output=tmp_path / name))

    said = on_terminal(command("fork", "terminal"), 80)
    piped = run(command("fork", "pipe"))
    assert piped.returncode == 0
    assert "updates," not in piped.stderr
    assert figures(tmp_path / "terminal") == figures(tmp_path / "pipe")
    lines = [text.partition("\x1b[K")[0] for text in said.split("\r") if "/12 updates" in text]
    assert "evaluating: 0/12 updates" in lines
    assert all(len(line) < 80 for line in lines)
    parts = " left, ", " tokens/s, loss "
    assert any(line.startswith("training: ") and all(part in line for part in parts) for line in lines)


def test_ppo_shows_its_phases_on_a_terminal_and_learns_alike(
    talkative_models: dict[str, Path], chats_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    without = train_small(talkative_models["llama"], chats_file, tmp_path, name="without")
    silent = capsys.readouterr()
    monkeypatch.setattr(status_line, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(status_line, "REDRAW_SECONDS", 0.0)
    with_line = train_small(talkative_models["llama"], chats_file, tmp_path, name="with")
    erase_live_line()
    shown = capsys.readouterr()
    assert figures(with_line) == figures(without)
    assert "\r" not in silent.out + silent.err
    iterations = [line for line in shown.out.splitlines() if line.startswith("iteration ")]
    assert len(iterations) == len([line for line in silent.out.splitlines() if line.startswith("iteration ")]) == 2
    lines = [text.partition("\x1b[K")[0] for text in shown.err.split("\r") if text]
    doing = list(dict.fromkeys(line.partition(":")[0] for line in lines if line))
    assert [name for name in ("evaluating", "generating", "scoring", "learning") if name not in doing] == []
    learning = [line for line in lines if line.startswith("learning")]
    counted = [line.partition(" ")[2].partition("/8 updates")[0] for line in learning]
    assert list(dict.fromkeys(counted)) == ["0", "1", "2", "3", "4", "5", "6", "7"]
    reward = learning[-1].partition(" tokens/s, reward ")[2].partition(",")[0]
    assert f": reward {reward}, " in iterations[0]
    assert ", KL 0" in learning[-1]
