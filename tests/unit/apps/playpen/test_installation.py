"""`lmgym playpen setup`: what it needs, said before anything is done."""

from pathlib import Path

import pytest

from lmgym.apps.playpen.clembench import installation
from lmgym.apps.playpen.clembench.installation import commands, set_up
from lmgym.errors import InputError


def test_it_says_what_it_needs_and_checks_without_doing_anything(tmp_path, capsys) -> None:
    set_up(str(tmp_path / "new"), "2.5.2", check_only=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("clemcore 2.5.2 gets an environment of its own")
    assert [line.split()[0] for line in lines[1:]] == ["ok", "ok", "ok"]
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(installation, "find_old_python", lambda: None)
    with pytest.raises(InputError, match=r"found no Python 3\.10 to 3\.12"):
        set_up(str(tmp_path / "new"), "2.5.2", check_only=True)
    with pytest.raises(InputError, match="version '2; rm'"):
        set_up(str(tmp_path / "new"), "2; rm", check_only=True)


def test_it_uses_uv_where_there_is_one_and_pip_elsewhere() -> None:
    [make, install] = commands(Path("e"), "2.5.2", "python3.11", "uv")
    assert make == ["uv", "venv", "--python", "python3.11", "e"]
    assert install[:5] == ["uv", "pip", "install", "--python", "e/bin/python"]
    assert "clemcore==2.5.2" in install
    assert commands(Path("e"), "2.5.2", "python3.11", None)[1][:4] == ["e/bin/python", "-m", "pip", "install"]


def test_a_command_that_fails_is_reported_in_its_last_words(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(installation, "commands", lambda *given: [["sh", "-c", "echo no index >&2; exit 3"]])
    with pytest.raises(InputError, match=r"exit code 3: no index; needed: .* and .*new removed"):
        set_up(str(tmp_path / "new"), "2.5.2", check_only=False)


def test_an_environment_that_is_there_is_kept_and_half_of_one_is_refused(tmp_path, capsys) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    with pytest.raises(InputError, match="an environment without clemcore; needed: remove it"):
        set_up(str(tmp_path), "2.5.2", check_only=False)
    (tmp_path / "lib/python3.11/site-packages/clemcore").mkdir(parents=True)
    set_up(str(tmp_path), "2.5.2", check_only=False)
    assert "exists already" in capsys.readouterr().out


def test_stop_words_are_put_where_nltk_looks(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(installation, "commands", lambda *given: [])
    set_up(str(tmp_path / "new"), "2.5.2", check_only=False)
    words = (tmp_path / "new/nltk_data/corpora/stopwords/english").read_text().split()
    assert {"the", "of", "and"} <= set(words)
