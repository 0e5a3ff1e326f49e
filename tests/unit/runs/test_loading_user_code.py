"""Users' Python files: imported by path under names of their own, with their faults on one line."""

from pathlib import Path

import pytest

from lmgym.errors import InputError, RunStopped, nearest
from lmgym.runs.user_code import import_file

DATACLASS = "from dataclasses import dataclass\n@dataclass\nclass Settings:\n    size: 'int' = 3\n"


def test_a_file_becomes_a_module_that_shadows_none(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text(DATACLASS)
    module = import_file(tmp_path / "json.py", "needed: x")
    assert module.Settings().size == 3
    import json

    assert json is not module
    (tmp_path / "other").mkdir()
    (tmp_path / "other/json.py").write_text("size = 4\n")
    assert import_file(tmp_path / "other/json.py", "needed: x").size == 4
    assert module.Settings().size == 3


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("absent.py", None, "there is no file .*absent.py; needed: a trainer"),
        ("a.txt", "", "a.txt is not a Python file; needed: one that ends in .py"),
        ("a.py", "1 / 0\n", r"a.py failed: ZeroDivisionError: division by zero \(.*a.py, line 1\)"),
        ("a.py", "x = (\n", r"a.py failed: SyntaxError: '\(' was never closed \(a.py, line 1\)"),
        ("a.py", "import sys\nsys.exit(0)\n", r"a.py calls exit\(0\) in .*a.py, line 2; needed: code"),
        ("a.py", "from lmgym.errors import InputError\nraise InputError('size=0')\n", "^size=0$"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_on_one_line(
    name: str, text: str | None, message: str, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        import_file(str(tmp_path / name), "needed: a trainer")
    assert "\n" not in str(refused.value)


def test_a_run_that_stops_in_a_users_file_stops(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from lmgym.errors import RunStopped\nraise RunStopped('enough', 'finished', 0)\n")
    with pytest.raises(RunStopped, match="enough"):
        import_file(tmp_path / "a.py", "needed: a trainer")


def test_the_nearest_name_is_found_in_either_case_and_none_that_is_far() -> None:
    known = ["learning_rate", "Taxi-v4", "epochs"]
    assert nearest("LEARNING_RTE", known) == "learning_rate"
    assert nearest("taxi-v3", known) == "Taxi-v4"
    assert nearest("qqq", known) is None
    assert nearest("qqq", known, 0) in known
    assert nearest("x", []) is None
