"""`lmgym debate`: experiments by name or path, and what the shell shows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.cli.debate import find_tournament, tournaments
from lmgym.errors import InputError

ROOT = Path(__file__).parents[3]


def lmgym(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "lmgym.cli.main", "debate", *words]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, env=environment)


def test_a_tournament_is_played_from_the_shell(tmp_path: Path) -> None:
    done = lmgym(tmp_path, "scripted", "--rounds", "6", "--questions", "2", "--speech_tokens", "5")
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    assert "6 rounds about 1 questions" in done.stdout
    folder = tmp_path / "outputs/debates/scripted"
    rows = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert (
        max(len(speech["text"].split()) for row in rows for speech in row["speeches"] if speech["kind"] == "speech")
        == 5
    )
    assert json.loads((folder / "results.json").read_text())["rounds"] == 6


def test_old_and_unknown_flags_are_one_line(tmp_path: Path) -> None:
    old = lmgym(tmp_path, "scripted", "--num_iters", "5")
    assert old.returncode == 2
    assert old.stderr == "error: --num_iters is a flag of run_debate; needed: --rounds N\n"
    unknown = lmgym(tmp_path, "scripted", "--round", "5")
    assert unknown.returncode == 2
    assert "unknown flag --round; did you mean --rounds?" in unknown.stderr


def test_without_a_name_the_experiments_are_listed(tmp_path: Path) -> None:
    listed = lmgym(tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(tournaments())


def test_experiments_are_found_by_name_or_path(tmp_path: Path) -> None:
    assert find_tournament("scripted").name == "scripted.py"
    mine = tmp_path / "mine.py"
    mine.write_text("")
    assert find_tournament(str(mine)) == mine
    with pytest.raises(InputError, match="there is no debate 'scriptd'; did you mean scripted"):
        find_tournament("scriptd")
    with pytest.raises(InputError, match="there is no file"):
        find_tournament("absent/mine.py")
