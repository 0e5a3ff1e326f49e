"""Length, a bag of words and the oracle on a small world."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from lmgym.apps.world.baselines import baselines
from lmgym.apps.world.tables import write_world
from lmgym.cli.main import main
from lmgym.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of 8,000 rows."""
    path = tmp_path_factory.mktemp("world")
    write_world(path, 8000, 3)
    return path


def test_who_knows_the_features_is_far_above_who_counts_words(folder: Path) -> None:
    found = baselines(folder)
    assert list(found) == ["length", "bag_of_words", "oracle"]
    assert found["oracle"] > 0.8
    assert max(found["length"], found["bag_of_words"]) < 0.7 * found["oracle"]


def test_the_command_shows_them(folder: Path) -> None:
    done = CliRunner().invoke(main, ["baselines", "--world", str(folder), "--rows", "3000"])
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.output.splitlines()] == ["length", "bag_of_words", "oracle"]


def test_another_version_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no world"):
        baselines(tmp_path)
    record = json.loads((folder / "world.json").read_text()) | {"version": "0.9"}
    (tmp_path / "world.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"version 0\.9.*make it again"):
        baselines(tmp_path)


def test_logs_without_a_word_are_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    logs = pyarrow.parquet.read_table(folder / "logs.parquet")
    place = logs.column_names.index("input_text")
    logs = logs.set_column(place, "input_text", pyarrow.nulls(len(logs), pyarrow.string()))
    pyarrow.parquet.write_table(logs, tmp_path / "logs.parquet")
    with pytest.raises(InputError, match=r"no bag_of_words baseline fits .*empty vocabulary"):
        baselines(tmp_path)
