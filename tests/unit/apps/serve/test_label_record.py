"""Labels outlive their server: kill -9, half a line, a full disk, two servers, undo, other rows, two tabs."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from full_disk import largest_file
from label_pages import LabelServer, post, serve_label_page, two_sided, write_rows
from patience import PATIENCE
from reward_servers import start

from lmgym.apps.serve.label_export import agreement, label_rows, rater_figures
from lmgym.apps.serve.label_record import AlreadyJudged, LabelRecord, read_name
from lmgym.apps.serve.label_rows import read_label_pairs
from lmgym.config import ColumnConfig
from lmgym.errors import InputError, RunStopped


def open_record(folder: Path, rows: list[dict]) -> LabelRecord:
    folder.mkdir(exist_ok=True)
    return LabelRecord(
        folder / "labels", read_label_pairs(str(write_rows(folder / "rows.jsonl", rows)), ColumnConfig()).pairs
    )


def judge_all(record: LabelRecord, rater: str, *verdicts: str) -> None:
    for verdict in verdicts:
        pair = record.next_pair(rater.casefold())
        assert pair is not None
        record.judge(rater, pair.id, verdict)


def test_a_killed_server_goes_on_where_it_was_and_no_answered_verdict_is_lost(tmp_path: Path) -> None:
    rows, folder = write_rows(tmp_path / "rows.jsonl", two_sided(30)), tmp_path / "labels"
    server = start(rows, "--output", folder, kind="label")
    client = LabelServer(server.url, folder)
    client.judge("Ann", *["good"] * 7, "tie")
    assert client.judge("Bo", "good", "bad")["judged"] == 2
    server.stop(signal.SIGKILL)
    verdicts = folder / "record/verdicts.jsonl"
    with verdicts.open("a") as file:
        file.write('{"at": "2026-01-01", "rater": "Ann", "pa')
    server = start(rows, "--output", folder, kind="label")
    said = "\n".join(server.said)
    assert "its last line was half written (40 bytes), and is cut off" in said
    assert "10 verdicts of 2 raters are in" in said
    state = post(server.url, "state", rater="Ann")[1]
    assert state["judged"] == 8
    assert state["pair"]["turns"][-1]["text"] == "question 8"
    written = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    assert [row["rater_1"] for row in written] == ["response_a"] * 7 + ["tie"]
    assert [row["rater_2"] for row in written] == ["response_a", "response_b"] + [None] * 6
    LabelServer(server.url, folder).judge("Ann", "good")
    assert server.stop() == 0
    assert len((folder / "labels.jsonl").read_text().splitlines()) == 9
    assert len([json.loads(line) for line in verdicts.read_text().splitlines()]) == 11


def test_a_second_server_on_a_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    rows, folder = write_rows(tmp_path / "rows.jsonl", two_sided(2)), tmp_path / "labels"
    with serve_label_page(rows, folder):
        command = [sys.executable, "-m", "lmgym", "serve", "label", rows, "--output", folder, "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert second.returncode == 73
    assert len(second.stderr.strip().splitlines()) == 1
    assert "is in use by another run" in second.stderr


def test_undo_takes_back_one_verdict_after_another_and_stays_in_the_record(tmp_path: Path) -> None:
    record = open_record(tmp_path, two_sided(3))
    judge_all(record, "Ann", "first", "tie", "cannot say")
    ids = list(record.served)
    with pytest.raises(AlreadyJudged):  # of another tab, in which a verdict before it was the latest
        record.undo("Ann", ids[0])
    record.undo("Ann", ids[2])
    record.undo("Ann", ids[1])
    assert record.next_pair("ann") is record.served[ids[1]]
    judge_all(record, "Ann", "second")
    record.close()
    again = open_record(tmp_path, two_sided(3))
    assert again.votes[ids[1]]["ann"].verdict != "tie"
    assert again.next_pair("ann") is again.served[ids[2]]
    assert again.raters["ann"].undone == 2
    assert again.raters["ann"].judged == ids[:2]
    again.close()


def test_a_second_tab_repeats_a_verdict_without_effect_and_cannot_change_it(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(2))
    with serve_label_page(rows, tmp_path / "labels") as server:
        pair = server.do("state", rater="Ann")["pair"]["id"]
        for _ in range(2):
            assert server.do("verdict", rater="Ann", pair=pair, verdict="first")["judged"] == 1
        status, found = server.post("verdict", rater="ann", pair=pair, verdict="second")
        assert status == 409
        assert "another tab" in found["error"]["message"]
        server.do("undo", rater="Ann", pair=pair)
        assert server.post("undo", rater="Ann", pair=pair)[0] == 409
        assert server.do("verdict", rater="Ann", pair=pair, verdict="second")["judged"] == 1
        assert server.post("verdict", rater="Ann", pair="0" * 24, verdict="tie")[0] == 400
        assert server.post("verdict", rater="Ann", pair=pair, verdict="response_a")[0] == 400
    assert len((tmp_path / "labels/record/verdicts.jsonl").read_text().splitlines()) == 3


def test_a_full_disk_refuses_the_verdict_and_leaves_a_whole_file(tmp_path: Path) -> None:
    record = open_record(tmp_path, two_sided(2))
    judge_all(record, "Ann", "first")
    path = tmp_path / "labels/record/verdicts.jsonl"
    before, pair = path.read_bytes(), record.next_pair("ann")
    assert pair is not None
    with largest_file(len(before) + 20), pytest.raises(OSError, match=r"too large|part was written"):
        record.judge("Ann", pair.id, "tie")
    assert path.read_bytes() == before
    assert record.next_pair("ann") is pair
    record.judge("Ann", pair.id, "tie")
    record.close()
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes().splitlines()) == 2


def test_other_rows_in_the_same_folder_keep_the_labels_of_the_first(tmp_path: Path) -> None:
    record = open_record(tmp_path, two_sided(3))
    judge_all(record, "Ann", "first", "first", "first")
    before = label_rows(record)
    record.close()
    turned = [{**row, "response_a": row["response_b"], "response_b": row["response_a"]} for row in two_sided(1)]
    other = [*turned, {"prompt": "new", "response_a": "x", "response_b": "y"}]
    record = open_record(tmp_path, other)
    assert any("also has 2 pairs of other rows" in note for note in record.notes)
    assert label_rows(record) == before, "a pair keeps its sides, also where the rows turn it round"
    assert record.next_pair("ann") is list(record.served.values())[1]
    judge_all(record, "Ann", "tie")
    assert len(label_rows(record)) == 4
    record.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        ("x" * 200, "200 characters"),
        ("a\u202eb", "can be seen"),
        ("a\0b", "can be seen"),
    ],
)
def test_names_that_tell_nobody_apart_are_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_name(name)
    with serve_label_page(write_rows(tmp_path / "rows.jsonl", two_sided(1)), tmp_path / "labels") as server:
        status, found = server.post("state", rater=name)
        assert (status, words in found["error"]["message"]) == (400, True)


def test_odd_names_are_raters_whose_labels_are_read_back(tmp_path: Path) -> None:
    names = ["../x", "🦊", "A", "B", "text 1", "Zoë", "response_b", "👩‍🔬"]
    record = open_record(tmp_path, two_sided(1))
    for name in names:
        judge_all(record, read_name(f"  {name} "), "tie")
    assert [rater.name for rater in record.raters.values()] == names
    record.close()
    record = open_record(tmp_path, two_sided(1))
    assert [rater["name"] for rater in rater_figures(record)] == names
    assert agreement(record).value == 1
    record.judge("zoe\u0308", next(iter(record.served)), "tie")  # in other characters, and small: the same name
    assert len(record.raters) == len(names)
    record.close()
    assert not (tmp_path / "x").exists()
    assert {path.name for path in (tmp_path / "labels").iterdir()} == {".lock", "record"}


def test_damaged_files_are_refused_with_their_line_and_the_folder_is_free_again(tmp_path: Path) -> None:
    record = open_record(tmp_path, two_sided(2))
    judge_all(record, "Ann", "first", "tie")
    record.close()
    path = tmp_path / "labels/record/verdicts.jsonl"
    whole = path.read_text()
    for bad in ("[1]\n", "{}\n", "nonsense\n", whole.splitlines()[0].replace("response_", "reply_") + "\n"):
        path.write_text(whole.splitlines()[0] + "\n" + bad)
        with pytest.raises(InputError, match=r"verdicts.jsonl, line 2, is damaged"):
            open_record(tmp_path, two_sided(2))
    path.write_text(whole)
    record = open_record(tmp_path, two_sided(2))
    with pytest.raises(RunStopped):
        open_record(tmp_path, two_sided(2))
    record.close()
