"""Rows of datasets: every format gives the same rows, and unreadable rows are reported with their places."""

import csv
import gzip
import json
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from damaged_rows import broken_text

from lmgym.data.pairs import validate
from lmgym.data.records import iterate_records, read_file, read_records
from lmgym.errors import InputError

ROWS = [
    {"prompt": "hello", "chosen": "hi, you", "rejected": 'go "away"'},
    {"prompt": "a\nb", "chosen": "ünï 😀", "rejected": "no"},
]


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    name = path.name
    if name.endswith((".jsonl", ".ndjson")):
        path.write_text(lines, encoding="utf-8")
    elif name.endswith(".zst"):
        with pyarrow.output_stream(str(path), compression="zstd") as file:
            file.write(lines.encode())
    elif name.endswith(".jsonl.gz"):
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".json"):
        path.write_text(" " + json.dumps(rows, indent=1), encoding="utf-8")
    elif name.endswith(".json.gz"):
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    elif name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif name.endswith(".arrow"):
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=1000)
    else:
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wt", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if ".tsv" in name else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


KINDS = (
    "a.jsonl",
    "a.jsonl.gz",
    "a.jsonl.zst",
    "a.ndjson",
    "a.json",
    "a.json.gz",
    "a.json.zst",
    "a.parquet",
    "a.arrow",
)
TABLES = ("a.csv", "a.csv.gz", "a.tsv")


@pytest.mark.parametrize("name", [*KINDS, *TABLES])
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, ROWS)
    records = read_records(str(path))
    assert [record.fields for record in records] == ROWS
    assert {record.file for record in records} == {str(path)}
    assert not any(record.fault for record in records)
    # a CSV's header is line 1, and its last row ends on line 4 as a cell holds a line break
    assert [record.line for record in records] == ([2, 4] if name in TABLES else [1, 2])


@pytest.mark.parametrize("name", ["data.csv.jsonl", "a.parquet.jsonl", "b.json.jsonl", "c.tsv.json"])
def test_the_last_suffix_says_what_a_file_is(name: str, tmp_path: Path) -> None:
    assert [record.fields for record in read_records(str(write(tmp_path / name, ROWS)))] == ROWS


def test_a_line_that_is_no_json_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"chosen": "a"}\n\n{"chosen": \n[1]\n{"chosen": "b"}\n')
    records = read_records(str(path))
    assert [(r.line, r.fields) for r in records] == [(1, {"chosen": "a"}), (3, {}), (4, {}), (5, {"chosen": "b"})]
    assert records[1].fault.found.startswith("not JSON")
    assert records[2].fault.found == "a list of 1 item; needed: an object"


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
        ("a.jsonl.zst", b"no zstd"),
        ("a.arrow", b"hello"),
        ("empty.arrow", b""),
        ("a.csv.gz", gzip.compress(LONG)[:-200]),
        ("open_object.json", b'{"chosen": "a",\n "rejected": [\n'),
        ("open_line.json", b'{"chosen": "a"'),
        ("two_lists.json", b'{"chosen":\n "a"}\n,\n[{\n}]'),
        ("uneven.json", b'{"chosen": ["a", "b"],\n "rejected": ["c"]}'),
        ("keys.json", b'{"data":\n [{"chosen": 1}], "data": 1}'),
        ("words.json", b'{\n chosen: ["a"]}'),
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

    def load(source, config, split, token):
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


# --- one by one


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet", "a.arrow"])
def test_rows_are_read_without_holding_them_all(name: str, tmp_path: Path) -> None:
    rows = [{"n": str(i), "text": f"{i} " * 440} for i in range(10_000)]
    path = write(tmp_path / name, rows)
    if name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=200)
    before, most, count = pyarrow.total_allocated_bytes(), 0, 0
    tracemalloc.start()
    for record in iterate_records(str(path)):
        assert record.fields["n"] == str(count)
        count += 1
        most = max(most, pyarrow.total_allocated_bytes() - before)
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert held + most < 10_000_000 < sum(len(row["text"]) for row in rows) / 2


def test_the_source_is_looked_for_at_once_and_damage_is_met_at_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        iterate_records(str(tmp_path / "none.jsonl"))
    whole = gzip.compress("".join(json.dumps({"n": i, "text": str(i**9)}) + "\n" for i in range(50_000)).encode())
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    records = iterate_records(str(tmp_path / "a.jsonl.gz"))
    assert [next(records).fields["n"] for _ in range(10_000)] == list(range(10_000))
    with pytest.raises(InputError, match="needed: a whole file"):
        list(records)


def test_damage_within_a_parquet_file_is_met_at_its_place(tmp_path: Path) -> None:
    table = pyarrow.table({"n": list(range(10_000)), "text": [f"{i} " * 20 for i in range(10_000)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 5000] = b"\xff" * 5000
    (tmp_path / "a.parquet").write_bytes(damaged)
    records = iterate_records(str(tmp_path / "a.parquet"))
    assert next(records).fields["n"] == 0
    with pytest.raises(InputError, match=r"a\.parquet is not a Parquet file"):
        list(records)


def test_a_bad_value_in_the_middle_of_an_arrow_file_fails_only_its_row(tmp_path: Path) -> None:
    table = pyarrow.table({"n": list(range(2500)), "text": broken_text([str(i) for i in range(2500)], 1203)})
    with pyarrow.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    records = read_records(str(tmp_path / "a.arrow"))
    assert [r.line for r in records] == list(range(1, 2501))
    assert [(r.line, r.fault.field, r.fault.reason) for r in records if r.fault] == [(1204, "text", "not UTF-8")]


def test_two_csv_files_with_long_cells_are_read_side_by_side(tmp_path: Path) -> None:
    rows = [{"text": "x" * 200_000}] * 3
    short, long = write(tmp_path / "a.csv", rows[:1]), write(tmp_path / "b.csv", rows)
    other = iterate_records(str(long))
    first = next(other)
    assert [r.fields for r in iterate_records(str(short))] == rows[:1]
    assert [first.fields, *(r.fields for r in other)] == rows
    assert csv.field_size_limit() == 131_072


# --- JSON that is in one piece

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b, ]}"}]
TWO_CHATS = {"chosen": MESSAGES, "rejected": MESSAGES * 2}
COLUMNS = {key: [row[key] for row in ROWS] for key in ROWS[0]}
PANDAS = {key: {str(i): row[key] for i, row in enumerate(ROWS)} for key in ROWS[0]}
ITEMS = [{"n": i} for i in range(3)]
DOCUMENTS: dict[str, tuple[object, list]] = {
    "one row": (ROWS[0], ROWS[:1]),
    "one row of messages": ({"messages": MESSAGES}, [{"messages": MESSAGES}]),
    "one row of two chats": (TWO_CHATS, [TWO_CHATS]),
    "one row with objects": ({"prompt": "a", "tools": ITEMS}, [{"prompt": "a", "tools": ITEMS}]),
    "one row with a split's name": ({"question": "a", "test": ITEMS}, [{"question": "a", "test": ITEMS}]),
    "one row with test cases": ({"problem": "a", "test_cases": [1]}, [{"problem": "a", "test_cases": [1]}]),
    "one row of empty objects": ({"a": {}, "b": {}}, [{"a": {}, "b": {}}]),
    "one row of scalars": ({"n": 1, "m": None}, [{"n": 1, "m": None}]),
    "one row without columns": ({}, [{}]),
    "a list": (ROWS, ROWS),
    "columns": (COLUMNS, ROWS),
    "columns of chats": ({"messages": [MESSAGES, MESSAGES]}, [{"messages": MESSAGES}] * 2),
    "columns of objects": ({"n": [1, 2, 3], "item": ITEMS}, [{"n": i + 1, "item": {"n": i}} for i in range(3)]),
    "columns without rows": ({"prompt": [], "chosen": []}, []),
    "columns of pandas": (PANDAS, ROWS),
    "rows by number": ({str(i): row for i, row in enumerate(ROWS)}, ROWS),
    "rows in an object": ({"version": "1", "about": {"data": [1]}, "data": ROWS, "tags": ["x"]}, ROWS),
    "rows in an object alone": ({"data": ROWS}, ROWS),
    "rows of LMFlow": ({"type": "conversation", "instances": [{"messages": MESSAGES}]}, [{"messages": MESSAGES}]),
    "rows by split": ({"train": ROWS, "test": ITEMS}, ROWS),
    "columns by split": ({"version": 2, "train": COLUMNS, "test": {"n": [1]}}, ROWS),
    "an empty test set": ({"train": ROWS, "test": []}, ROWS),
}  # fmt: skip


@pytest.mark.parametrize("indent", [1, 4, None])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_json_file_in_one_piece(name: str, indent: int | None, tmp_path: Path) -> None:
    value, rows = DOCUMENTS[name]
    text = "\ufeff\n " + json.dumps(value, indent=indent, ensure_ascii=False) + "\n\n"
    for kind in (".json", ".json.gz", *((".jsonl",) if indent is not None and value else ())):
        path = tmp_path / f"a{kind}"
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith(".gz") else text.encode())
        records = read_records(str(path))
        assert [record.fields for record in records] == rows, kind
        assert not any(record.fault for record in records)
        assert name.startswith("one row") or [record.line for record in records] == list(range(1, len(rows) + 1))


@pytest.mark.parametrize("value", [{"data": ITEMS}, {"replies": ["a", "b"], "ranks": [1, 2]}, {"train": ITEMS}])
def test_one_object_a_line_is_a_row_of_a_file_of_lines(value: dict, tmp_path: Path) -> None:
    for rows in ([value], [value, value]):
        assert [record.fields for record in read_records(str(write(tmp_path / "a.jsonl", rows)))] == rows


def test_a_file_of_lines_may_hold_a_list(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text in (json.dumps(ROWS), json.dumps(ROWS, indent=2), "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]"):
        path.write_text(text)
        assert [(r.line, r.fields) for r in read_records(str(path))] == [(1, ROWS[0]), (2, ROWS[1])]
    path.write_text("[1]\n[2]\n")
    assert [r.fault.reason for r in read_records(str(path))] == ["not an object"] * 2
    path.write_text('[{"chosen": "a"}, {"chosen": \n')
    assert [(r.line, r.fault.reason) for r in read_records(str(path))] == [(1, "not JSON")]


@pytest.mark.parametrize("messages", [MESSAGES, [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]])
def test_a_list_of_messages_is_a_row_wherever_a_row_is(messages: list, tmp_path: Path) -> None:
    line, pretty, row = json.dumps(messages), json.dumps(messages, indent=2), {"messages": messages}
    for text, rows in (
        (line, 1), (pretty, 1), (f"{line}\n{line}\n", 2), (f"{pretty}\n{pretty}", 2), (f"[{pretty}, {line}]", 2),
        (f"[\n{line},\n{line}]", 2), (f'{line}\n{{"messages": {line}}}', 2),
    ):  # fmt: skip
        for name in ("a.json", "a.jsonl"):
            (tmp_path / name).write_text(text)
            assert [record.fields for record in read_records(str(tmp_path / name))] == [row] * rows, (name, text)
    (tmp_path / "a.json").write_text(pretty[:-3])
    with pytest.raises(InputError, match="not closed"):
        read_records(str(tmp_path / "a.json"))


def test_splits_within_a_json_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"train": ROWS, "validation": ITEMS, "dev": []}))
    assert [r.fields for r in read_records(str(path), "validation")] == ITEMS
    assert [r.fields for r in read_records(str(path), "test")] == ITEMS
    assert read_records(str(path), "dev") == []
    with pytest.raises(InputError, match="its splits are train, validation, dev; asked for world; needed:"):
        read_records(str(path), "world")
    with pytest.raises(InputError, match="its splits are train, validation, dev: name a file of one"):
        list(read_file(path))


def test_lists_of_unequal_length_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"prompt": ["a"] * 1200, "chosen": ["b"]}, indent=1))
    with pytest.raises(InputError, match=r"its lists differ in length: prompt has 1,200, chosen has 1; needed:"):
        read_records(str(tmp_path / "a.json"))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_objects_in_several_lines_one_after_the_other_are_rows_at_their_lines(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("\n" + "\n".join(json.dumps(row, indent=2) for row in (*ROWS, ROWS[0])))
    records = read_records(str(tmp_path / name))
    assert [(r.line, r.fields) for r in records] == [(2, ROWS[0]), (7, ROWS[1]), (12, ROWS[0])]


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_damaged_first_lines_fail_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for first, bad in (('{"chosen": "a', 1), ('{"chosen": [[[\n{"b": \n', 2), ("{\n[", 2), ('{"chosen": "a\nb"}', 2)):
        path.write_text(first.rstrip() + '\n{"chosen": "b"}\n{"chosen": "c"}\n')
        records = read_records(str(path))
        assert [r.fields for r in records if not r.fault] == [{"chosen": "b"}, {"chosen": "c"}]
        assert {r.fault.reason for r in records if r.fault} == {"not JSON"}
        assert records[-1].line == bad + 2


@pytest.mark.parametrize("text", ['{"n": "x\n\n: "x\\n1"}\n', '{"n"\nx\\n1"}\n', '{"n": [\n]]}\n'])
def test_a_damaged_line_of_a_file_of_lines_costs_no_other_row(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(text + '{"n": 2}')
    assert [r.fields for r in read_records(str(tmp_path / "a.jsonl")) if not r.fault] == [{"n": 2}]


def test_a_bad_row_within_an_object_fails_alone(tmp_path: Path) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    items = ('{"n": 1}', '{"n": 1, "n": 2}', "{'n': 3}", f'{{"n": {deep}}}', "7", '{"n": 4}')
    (tmp_path / "a.json").write_text('{"version": 1,\n "rows": [\n' + ",\n".join(items) + "]\n}")
    records = read_records(str(tmp_path / "a.json"))
    assert [(r.line, r.fields) for r in records if not r.fault] == [(1, {"n": 1}), (6, {"n": 4})]
    assert [r.fault.reason for r in records if r.fault] == [
        "unreadable",
        "not JSON",
        "nested too deeply",
        "not an object",
    ]
