"""Readers of files: a pipe in the place of one is refused, where a library would wait for ever."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.cli.main import main
from lmgym.data.records import read_file, read_parquet
from lmgym.errors import InputError, regular
from lmgym.models.loading import load_tokenizer
from lmgym.runs.files import read_json, read_line
from lmgym.runs.hostfile import read_hostfile
from lmgym.scoring.named_scorers import load_scorer

NO_FILE = "a pipe or a device, not a file"


@pytest.fixture(autouse=True)
def _no_wait_for_ever() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    former = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def test_files_and_folders_are_readable_and_pipes_and_devices_are_not(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert [regular(tmp_path / name).name for name in ("file", "link", "")] == ["file", "link", tmp_path.name]
    for path in (pipe(tmp_path / "pipe"), Path("/dev/zero")):
        with pytest.raises(OSError, match=NO_FILE):
            regular(path)
    with pytest.raises(FileNotFoundError):
        regular(tmp_path / "absent")


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt.gz", "a.jsonl.zst", "a.parquet", "a.arrow"])
def test_rows_are_not_waited_for(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=NO_FILE):
        list(read_file(pipe(tmp_path / name)))


def test_a_column_of_a_table_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=NO_FILE):
        read_parquet(pipe(tmp_path / "a.parquet"), ["x"])


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "of_no_use.bin"])
def test_a_model_with_a_pipe_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    pipe(tmp_path / name)
    with pytest.raises(InputError, match=rf"is no model's folder: {name} is {NO_FILE}"):
        load_tokenizer(str(tmp_path))


def test_records_and_lists_of_hosts_are_not_waited_for(tmp_path: Path) -> None:
    path = pipe(tmp_path / "pipe.yaml")
    for read in (
        read_json,
        lambda path: read_line(path, 1),
        lambda path: read_hostfile(str(path)),
        lambda path: load_scorer(str(path)),
    ):
        with pytest.raises((OSError, InputError), match=f"{NO_FILE}|is no file|there is no rubric"):
            read(path)


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "events.jsonl", "evaluation.json"])
def test_a_run_with_a_pipe_is_listed_and_reported_without_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"outcome": "finished", "config": {}, "started": "2026-01-01"}')
    (tmp_path / name).unlink(missing_ok=True)
    pipe(tmp_path / name)
    for command in ("runs", "report"):
        done = CliRunner().invoke(main, [command, str(tmp_path)])
        assert done.exit_code in (0, 2), done.output
        assert not done.exception or isinstance(done.exception, SystemExit)
