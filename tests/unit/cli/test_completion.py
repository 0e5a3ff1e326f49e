"""Completion in bash: commands, experiments, flags of the stage, their values, and files."""

import contextlib
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from patience import PATIENCE

from lmgym.cli.main import main

ROOT = Path(__file__).parents[3]


def completed(*words: str) -> list[tuple[str, str]]:
    """(kind, value) of the completions of the last word in bash."""
    environment = {
        **os.environ, "_LMGYM_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip
    done = CliRunner().invoke(main, prog_name="lmgym", env=environment)
    return [(kind, value) for kind, _, value in (line.partition(",") for line in done.stdout.split())]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("do", ["doctor"]),
        ("train s", ["sft"]),
        ("train reward hh", ["hh_pairwise"]),
        ("train grpo mat", ["maths"]),
        ("train grpo maths --prompt_w", ["--prompt_weights"]),
        ("train reward pairs.jsonl --dataset_w", ["--dataset_weights"]),
        ("train grpo --num_g", ["--num_gpus", "--num_generations"]),
        ("train grpo maths --method gr", ["grpo"]),
        ("train sft chat --dry_run t", ["true"]),
        ("train sft chat --help a", ["all"]),
        ("train sft chat --learning_rate 1", []),
        ("chat x --sco", ["--scorers"]),
    ],
)
def test_tab_offers_commands_experiments_flags_and_their_values(line: str, offered: list[str]) -> None:
    assert completed("lmgym", *line.split()) == [("plain", one) for one in offered]


@pytest.mark.parametrize(
    "line",
    ["train reward pai", "train sft chat --dataset x", "train grpo maths --scorers x", "score x", "chat x", "report x",
     "score a.jsonl b --output x"],
)  # fmt: skip
def test_files_are_offered_where_a_word_may_be_one(line: str) -> None:
    assert completed("lmgym", *line.split()) == [("file", "")]


def typed(folder: Path, *keys: str) -> str:
    """The output of an interactive bash for what is typed; `lmgym` is this tree's."""
    (folder / "bin").mkdir()
    (folder / "bin/lmgym").write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m lmgym "$@"\n')
    (folder / "bin/lmgym").chmod(0o755)
    ours, theirs = pty.openpty()
    environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb"}
    command = ["bash", "--norc", "--noprofile", "-i"]
    shell = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environment, start_new_session=True
    )
    os.close(theirs)
    for key in keys:
        os.write(ours, key.encode())
    said, until = b"", time.monotonic() + PATIENCE
    with contextlib.suppress(OSError):  # the end of a terminal's last process
        while time.monotonic() < until and select.select([ours], [], [], PATIENCE)[0] and (more := os.read(ours, 9999)):
            said += more
    shell.wait(PATIENCE)
    os.close(ours)
    return said.decode(errors="replace")


def test_bash_completes_a_file_behind_a_flag_and_a_flag(tmp_path: Path) -> None:
    (tmp_path / "odd rows.jsonl").touch()
    line = "lmgym train reward hh_pairwise --dataset odd\t --dataset_w\t"
    # the beginning of the line, and so printed rather than run
    said = typed(tmp_path, 'eval "$(lmgym completion bash)"\n', line, "\x01printf '<%s>' \n", "exit\n")
    assert "<lmgym><train><reward><hh_pairwise><--dataset><odd rows.jsonl><--dataset_weights>" in said
