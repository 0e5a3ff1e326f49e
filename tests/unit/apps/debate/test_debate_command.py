"""`lmgym debate`: experiments by name or path, and what the shell shows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launching import BIN, launch, run
from patience import PATIENCE

from lmgym.apps.debate.commands import find_tournament, refuse_old_flags, tournaments
from lmgym.errors import InputError

ROOT = Path(__file__).parents[4]


def lmgym(folder: Path, *words: str, modules: Path | None = None) -> subprocess.CompletedProcess:
    """`lmgym debate WORDS` in a folder; with `modules`, a folder of modules that are found first, in a new Python."""
    if modules is None:
        return run(launch("fork", "debate", *words, script=BIN / "lmgym"), cwd=folder, HOME=str(folder))
    command = [sys.executable, "-m", "lmgym.cli.main", "debate", *words]
    environment = {"PYTHONPATH": f"{modules}:{ROOT}", "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, env=environment)


def test_a_tournament_is_played_from_the_shell_and_without_a_model_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/torch.py").write_text("raise RuntimeError('torch is imported')")
    words = ("scripted", "--rounds", "6", "--questions", "2", "--speech_tokens", "5")
    done = lmgym(tmp_path, *words, modules=tmp_path / "modules")
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    assert "rounds: 6, questions: 1" in done.stdout
    folder = tmp_path / "outputs/debates/scripted"
    rows = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert (
        max(len(speech["text"].split()) for row in rows for speech in row["speeches"] if speech["kind"] == "speech")
        == 5
    )
    assert json.loads((folder / "results.json").read_text())["rounds"] == 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num_iters", "50"], "--num_iters is a flag of run_debate; needed: --rounds N"),
        (["x", "--configuration=Local"], "--configuration is a flag of run_debate; needed: the experiment's name"),
        (["--suppress-graphs"], "--suppress_graphs is a flag"),
    ],
)
def test_flags_of_run_debate_are_explained(flags: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        refuse_old_flags(flags)
    refuse_old_flags(["scripted", "--rounds", "5", "--num"])


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


@pytest.mark.parametrize("name", ["experiment.yaml", "./experiment.yml", "./experiment.txt"])
def test_a_file_that_is_no_python_is_never_run(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("open('ran', 'w')\n")
    done = lmgym(tmp_path, name, "--rounds", "1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is no Python file; needed: an experiment" in done.stderr
    assert ("lmgym from nyu" in done.stderr) == ("yaml" in name or "yml" in name)
    assert not (tmp_path / "ran").exists()


def test_a_judge_is_audited_from_the_shell(tmp_path: Path) -> None:
    done = lmgym(tmp_path, "audit", "letter:e", "--questions", "12")
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "outputs/audit/audit.json").read_text())
    assert saved["judge"] == "letter:e"
    verdicts = {row["bias"]: row["verdict"] for row in saved["biases"]}
    assert verdicts["letter e"] == "biased"
    assert verdicts["letter l"].startswith("no bias above ")
    few = lmgym(tmp_path, "audit", "letter:e", "--questions", "1").stdout
    assert "biased" not in few
    assert "one question is too few for a 95% interval" in few
    assert "letter e" in done.stdout
    assert "biased" in done.stdout


def test_audits_are_refused_in_one_line(tmp_path: Path) -> None:
    for words, why in (
        (["audit"], "no JUDGE; needed"),
        (["audit", "--questions", "5"], "no JUDGE; needed"),
        (["audit", "letter:e", "--letters", "1"], "needed: 1 to 26 letters"),
        (["audit", "letter:e", "--question", "5"], "did you mean --questions?"),
        (["audit", "letter:e", "--transcripts", "absent"], "has no transcripts"),
    ):
        done = lmgym(tmp_path, *words)
        assert done.returncode == 2, words
        assert done.stderr.count("\n") == 1, done.stderr
        assert why in done.stderr


def test_recorded_debates_are_audited_and_reported_again(tmp_path: Path) -> None:
    play = launch("fork", "--rounds", "4", "--output", "played", script=find_tournament("scripted"))
    assert run(play, cwd=tmp_path).returncode == 0
    (tmp_path / "played/report.html").unlink()
    done = run(launch("fork", "report", "played", script=BIN / "lmgym"), cwd=tmp_path)
    assert done.stdout == "written: played/report.html\n", done.stderr
    assert (tmp_path / "played/report.html").is_file()
    audited = lmgym(tmp_path, "audit", "letter:e", "--transcripts", "played", "--output", "audited")
    assert audited.returncode == 0, audited.stderr
    saved = json.loads((tmp_path / "audited/audit.json").read_text())
    assert saved["biases"][0]["effect"]["units"] == 1
