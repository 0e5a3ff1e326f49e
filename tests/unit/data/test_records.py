"""Rows of datasets: every format gives the same rows, and unreadable rows are reported with their places."""

import csv
import gzip
import json
from pathlib import Path

import pytest

from lmgym.data.pairs import validate
from lmgym.data.records import read_records
from lmgym.errors import InputError

ROWS = [
    {"prompt": "hello", "chosen": "hi, you", "rejected": 'go "away"'},
    {"prompt": "a\nb", "chosen": "ünï 😀", "rejected": "no"},
]


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    name = path.name
    if name.endswith(".jsonl"):
        path.write_text(lines, encoding="utf-8")
    elif name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".json"):
        path.write_text(" " + json.dumps(rows, indent=1), encoding="utf-8")
    elif name.endswith(".json.gz"):
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    elif name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.json.gz", "a.parquet", "a.csv"])
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, ROWS)
    records = read_records(str(path))
    assert [record.fields for record in records] == ROWS
    assert {record.file for record in records} == {str(path)}
    assert not any(record.fault for record in records)
    # a CSV's header is line 1, and its last row ends on line 4 as a cell holds a line break
    assert [record.line for record in records] == ([2, 4] if name == "a.csv" else [1, 2])


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a.parquet"])
def test_messages_come_through_as_lists_of_objects(name: str, tmp_path: Path) -> None:
    rows = [{"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]}]
    assert [record.fields for record in read_records(str(write(tmp_path / name, rows)))] == rows


def test_a_line_that_is_no_json_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"chosen": "a"}\n\n{"chosen": \n[1]\n{"chosen": "b"}\n')
    records = read_records(str(path))
    assert [(r.line, r.fields) for r in records] == [(1, {"chosen": "a"}), (3, {}), (4, {}), (5, {"chosen": "b"})]
    assert records[1].fault.found.startswith("not JSON")
    assert records[2].fault.found == "a list of 1 item; needed: an object"


def test_a_json_file_may_hold_lines_too(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"chosen": "a"}\n{"chosen": "b"}\n')
    assert [(r.line, r.fields["chosen"]) for r in read_records(str(path))] == [(1, "a"), (2, "b")]


def test_an_empty_csv_cell_is_null_and_a_surplus_cell_is_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\ufeffchosen,rejected\n,b\na\na,b,c\n", encoding="utf-8")  # with the mark that Excel writes
    empty, short, surplus = read_records(str(path))
    assert empty.fields == {"chosen": None, "rejected": "b"}
    assert short.fields == {"chosen": "a", "rejected": None}
    assert surplus.line == 4
    assert "more cells" in surplus.fault.found


def test_numbers_in_a_csv_are_numbers(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "margin": 0.5}, {**ROWS[1], "margin": ""}]
    pairs, _ = validate(read_records(str(write(tmp_path / "a.csv", rows))))
    assert [pair.margin for pair in pairs] == [0.5, 0.0]


def test_a_folder_gives_the_files_of_the_split_in_order_of_their_names(tmp_path: Path) -> None:
    for name, text in (("train-2.jsonl", "c"), ("train-1.csv", "b"), ("test.jsonl", "d"), ("notes.txt", "no rows")):
        write(tmp_path / "data" / name, [{"chosen": text, "rejected": "x"}])
    folder = str(tmp_path / "data")
    assert [r.fields["chosen"] for r in read_records(folder)] == ["b", "c"]
    assert [r.fields["chosen"] for r in read_records(folder, "test")] == ["d"]
    assert [Path(r.file).name for r in read_records(folder)] == ["train-1.csv", "train-2.jsonl"]


def test_a_folder_whose_files_name_no_split_gives_all_of_them(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write(tmp_path / "data" / name, ROWS)
    assert len(read_records(str(tmp_path / "data"))) == 4


@pytest.mark.parametrize("name", ["/no/such.jsonl", "./nothing", "none.csv", "just_a_name", "a/b/c"])
def test_a_path_that_does_not_exist_is_refused_with_what_is_needed(name: str) -> None:
    with pytest.raises(InputError, match="does not exist; needed: a file, a folder, or a hub id"):
        read_records(name)


def test_a_folder_without_data_and_a_file_of_another_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pairs.txt").write_text("hello")
    with pytest.raises(InputError, match="folder without data files"):
        read_records(str(tmp_path))
    with pytest.raises(InputError, match="of no known kind"):
        read_records(str(tmp_path / "pairs.txt"))


def test_unreadable_folders_and_impossible_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    for path in ("/" + "x" * 5000, "./a\0b\x1b"):
        with pytest.raises(InputError, match="does not exist") as caught:
            read_records(path)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 500
    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"cannot be read: .*Permission denied"):
        read_records(str(tmp_path))


LONG = "\n".join(json.dumps({"chosen": str(i), "rejected": str(i * i)}) for i in range(500)).encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'[{"chosen": 1,]'),
        ("a.jsonl.gz", b"no gzip"),
        ("cut.jsonl.gz", gzip.compress(LONG)[:-200]),
        ("spoilt.jsonl.gz", gzip.compress(LONG)[:10] + b"\xff" * 100),
        ("a.parquet", b"hello"),
        ("open.json", b'[{"chosen": "a"}, {"chosen": "b"}'),
        ("more.json", b'[{"chosen": "a"}] [1]'),
        ("twice.csv", b"chosen,chosen\na,b\n"),
    ],
)
def test_a_file_that_is_broken_as_a_whole_is_named(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_records(str(tmp_path / name))
    assert str(tmp_path / name) in str(caught.value)


def test_a_hub_id_that_does_not_load_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(InputError, match=r"owner/name \(split train\).*no route$"):
        read_records("owner/name")


def test_rows_of_the_hub_are_numbered_within_their_split(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = {}

    def load(source, split, token):
        asked.update(source=source, split=split)
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load)
    records = read_records("owner/name", "test")
    assert asked == {"source": "owner/name", "split": "test"}
    assert [(r.file, r.line, r.fields) for r in records] == [
        ("owner/name:test", 1, ROWS[0]),
        ("owner/name:test", 2, ROWS[1]),
    ]


def test_a_folder_without_the_split_is_refused_rather_than_read_whole(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(InputError, match=r"no file for the split test; found train\.jsonl"):
        read_records(str(tmp_path), "test")
