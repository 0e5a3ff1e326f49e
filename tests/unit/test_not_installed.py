"""Entry points under a Python without lmgym's packages: one line with the command to type."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from patience import PATIENCE

ROOT = Path(__file__).parents[2]
BASE = Path(sys.base_prefix) / "bin" / "python3"
ENTRIES = (
    ["-m", "lmgym", "runs"],
    ["-m", "lmgym.cli.main"],
    ["-m", "reward_models.experiments.hh_pairwise", "--help"],
    ["eval_rewards_api.py"],
)


def said(python: Path, *words: str, cwd: Path = ROOT) -> str:
    """The command in the one line that a Python without packages prints."""
    command = [python, *words]
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {python} has no package ")
    return line.partition("; needed: ")[2]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without packages."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python3"


@pytest.mark.parametrize("words", ENTRIES, ids=" ".join)
def test_every_entry_point_ends_in_one_line(words: list[str], empty: Path) -> None:
    assert said(empty, *words).split()[0] in ("source", "pip")


@pytest.mark.skipif(not (ROOT / ".venv/bin/activate").is_file(), reason="the repository has no .venv")
def test_where_the_repository_has_an_environment_it_is_activated(empty: Path, tmp_path: Path) -> None:
    assert said(empty, "-m", "lmgym") == "source .venv/bin/activate"
    (tmp_path / "own.py").write_text(f"import sys; sys.path.append({str(ROOT)!r}); import lmgym.cli.main")
    assert said(empty, "own.py", cwd=tmp_path) == f"source {ROOT}/.venv/bin/activate"


def test_without_one_it_is_made_or_filled(tmp_path: Path) -> None:
    (tmp_path / "lmgym").symlink_to(ROOT / "lmgym")
    venv.create(tmp_path / ".venv", symlinks=True)
    own = tmp_path / ".venv/bin/python3"
    assert said(own, "-m", "lmgym", cwd=tmp_path) == "pip install lmgym"
    (tmp_path / "requirements.txt").touch()
    assert said(own, "-m", "lmgym", cwd=tmp_path) == "pip install -r requirements.txt -e ."
    (tmp_path / ".venv").rename(tmp_path / "away")
    base = [BASE, "-S", "-m", "lmgym"]
    done = subprocess.run(base, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=PATIENCE)
    made = "needed: python3 -m venv .venv && source .venv/bin/activate && pip install -r requirements.txt -e .\n"
    assert done.stderr.endswith(made)


def test_other_errors_keep_their_traceback_and_an_installed_lmgym_hooks_nothing(empty: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import lmgym\nimport lmgym.absent\n")
    environment = {"PYTHONPATH": str(ROOT)}
    for words in ([sys.executable], [empty]):
        done = subprocess.run(
            [*words, tmp_path / "own.py"], env=environment, capture_output=True, text=True, check=False
        )
        assert "Traceback" in done.stderr
        assert "No module named 'lmgym.absent'" in done.stderr
    hooks = "import sys, lmgym; assert sys.excepthook is sys.__excepthook__"
    subprocess.run([sys.executable, "-c", hooks], env=environment, check=True)
