"""`lmgym report`, `compare` and `watch` as they are typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmgym.cli.main import main
from lmgym.runs.locks import FolderLock


def run(folder: Path, rate: float) -> str:
    folder.mkdir(parents=True)
    record = {"name": folder.name, "outcome": "finished", "config": {"learning_rate": rate}}
    (folder / "run.json").write_text(json.dumps(record))
    rows = [{"prompt": i, "chosen": float(i % 3 > rate * 1000), "rejected": 0.5, "lengths": [1, 2]} for i in range(30)]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_runs_are_compared_on_the_terminal_and_as_a_page(tmp_path: Path) -> None:
    page = tmp_path / "pages/comparison.html"
    done = invoke("compare", run(tmp_path / "a", 0.001), run(tmp_path / "b", 0.0), "--output", str(page))
    assert done.exit_code == 0, done.output
    for shown in ("learning_rate", "0.001", "b − a", "accuracy", "+0.333 (", "p = 0.00", "30 rows"):
        assert shown in " ".join(done.output.split()), shown
    assert 'data-testid="panel-tests"' in page.read_text()


def test_one_run_is_not_compared_with_itself(tmp_path: Path, capsys) -> None:
    folder = run(tmp_path / "a", 0.001)
    done = invoke("compare", folder, folder)
    assert done.exit_code != 0
    assert "1 run; needed: the folders of two runs or more" in done.output


@pytest.mark.parametrize("command", ["report", "watch"])
def test_a_folder_without_a_run_is_refused_with_the_runs_in_it(command: str, tmp_path: Path) -> None:
    run(tmp_path / "inside", 0.001)
    done = invoke(command, str(tmp_path))
    assert done.exit_code != 0
    assert f"has no run.json; its folders with runs: {tmp_path / 'inside'}" in done.output


def test_a_report_is_written_again(tmp_path: Path) -> None:
    done = invoke("report", run(tmp_path / "a", 0.001))
    assert done.output == f"written: {tmp_path / 'a/report.html'}\n"
    assert 'data-testid="panel-reliability"' in (tmp_path / "a/report.html").read_text()


def test_a_run_that_wrote_no_end_is_killed_unless_a_process_holds_its_folder(tmp_path: Path) -> None:
    folder = Path(run(tmp_path / "a", 0.001))
    (folder / "run.json").write_text(json.dumps({"name": "a", "outcome": "running"}))
    invoke("report", str(folder))
    assert "Killed after 0 updates." in (folder / "report.html").read_text()
    lock = FolderLock(folder)
    invoke("report", str(folder))
    lock.release()
    assert "Running after 0 updates, as this page was written." in (folder / "report.html").read_text()


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = invoke("watch", run(tmp_path / "a", 0.001), "--port", str(taken.getsockname()[1]))
    assert done.exit_code != 0
    assert "Address already in use; needed: a free port, such as --port 0" in done.output
