"""A bad row is a counted rejection with its reason, in every format and for every stage; the other rows are read."""

import csv
import datetime
import gc
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_rows import DEEP, broken_text, check, write

from lmgym.apps.chat.evolution import read_chats
from lmgym.data.pairs import validate
from lmgym.data.prompts import read_prompts
from lmgym.data.records import Record, read_records
from lmgym.data.rejections import Rejection, RowError
from lmgym.data.rows import read_rows
from lmgym.errors import InputError
from ppo.config import RolloutConfig
from reward_models.kwise import validate_groups
from sft.conversations import validate_chats, validate_chosen, validate_distillation_rows

GOOD = '{"prompt": "q", "chosen": "a", "rejected": "b"}'


BAD_LINES: dict[str, tuple[str | bytes, str, str]] = {
    "deep nesting that the parser refuses": ('{"prompt": ' + DEEP, "(row)", "nested too deeply"),
    "deep nesting that the parser reads": (
        f'{{"prompt": {"[" * 300 + "]" * 300}, "chosen": "c", "rejected": "b"}}',
        "prompt",
        "nested too deeply",
    ),
    "a lone surrogate in a text": (r'{"prompt": "\ud800", "chosen": "c", "rejected": "b"}', "prompt", "not UTF-8"),
    "a lone surrogate in a role": (
        r'{"prompt": [{"role": "\ud800", "content": "x"}], "chosen": "c", "rejected": "b"}',
        "prompt",
        "not UTF-8",
    ),
    "a lone surrogate in a key": (
        r'{"\ud800": 1, "prompt": "q", "chosen": "c", "rejected": "b"}',
        "\ud800",
        "not UTF-8",
    ),
    "bytes that are not UTF-8": (b'{"prompt": "\xff\xfe", "chosen": "c", "rejected": "b"}', "prompt", "not UTF-8"),
    "a system message alone": (
        '{"prompt": "q", "chosen": [{"role": "system", "content": "x"}], "rejected": "b"}',
        "chosen",
        "without a reply",
    ),
    "a key twice": ('{"prompt": "q", "chosen": "c", "chosen": "d", "rejected": "b"}', "(row)", "unreadable"),
    "a number of 5,000 digits": (
        '{"prompt": "q", "chosen": "c", "rejected": "b", "margin": ' + "9" * 5000 + "}",
        "(row)",
        "out of range",
    ),
    "an infinite margin": (
        '{"prompt": "q", "chosen": "c", "rejected": "b", "margin": Infinity}',
        "margin",
        "out of range",
    ),
    "a huge role": (
        '{"prompt": [{"role": "' + "x" * 1_000_000 + '", "content": "x"}], "chosen": "c", "rejected": "b"}',
        "prompt",
        "with unsupported messages",
    ),
    "a huge key": ('{"prompt": {"' + "x" * 1_000_000 + '": 1}, "chosen": "c", "rejected": "b"}', "prompt",
                   "of the wrong type"),
    "control characters": ('{"prompt": "q", "chosen": "\\u001b[31m', "(row)", "not JSON"),
    "a number": ("7", "(row)", "not an object"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_rejected_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    line, field, reason = BAD_LINES[name]
    other = GOOD.replace('"q"', '"other"')
    for suffix in (".jsonl", ".jsonl.gz"):
        path = tmp_path / f"a{suffix}"
        write(path, GOOD, line, "", other)
        if suffix.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
        pairs, rejections = validate(read_records(str(path)))
        assert [pair.line for pair in pairs] == [1, 4]
        check(rejections, (2, field, reason))


@pytest.mark.parametrize(
    "name", sorted(set(BAD_LINES) - {"deep nesting that the parser refuses", "control characters"})
)
def test_a_bad_item_of_a_list_is_rejected_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    line, field, reason = BAD_LINES[name]
    path = write(
        tmp_path / "a.json", "[", GOOD + ",", line, ", {'not': \"JSON, ]}\"},", GOOD.replace('"q"', '"z"'), "]"
    )
    pairs, rejections = validate(read_records(path))
    assert [pair.line for pair in pairs] == [1, 4]
    check(rejections, (2, field, reason), (3, "(row)", "not JSON"))


def test_an_escaped_character_outside_the_basic_plane_is_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"prompt": "😀", "chosen": "a\0", "rejected": "b"}))
    [pair], rejections = validate(read_records(path))
    assert (pair.conversation.turns[0].text, pair.chosen, rejections) == ("😀", "a\0", [])


def test_a_long_cell_is_read_and_bad_rows_of_a_csv_are_rejected(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        "prompt,chosen,rejected",
        "q," + "x" * 200_000 + ",b",
        b"q,\xff,b",
        'q,"a"b,c',
        "q\0,a,b",
        "q,a,b,c",
        'q,"never closed,b',
        "swallowed,a,b",
    )
    pairs, rejections = validate(read_records(path))
    assert [pair.line for pair in pairs] == [2, 5]
    check(
        rejections,
        (3, "chosen", "not UTF-8"),
        (4, "(row)", "not CSV"),
        (6, "(row)", "not CSV"),
        (8, "(row)", "not CSV"),
    )
    assert "in lines 7 to 8" in rejections[-1].found
    assert csv.field_size_limit() == 131_072, "the process's own limit is as it was"


def test_text_of_parquet_that_is_not_utf_8_fails_only_its_row(tmp_path: Path) -> None:
    prompts = [f"q {i}" for i in range(2500)]
    table = pa.table({"prompt": broken_text(prompts, 1203), "chosen": ["a"] * 2500, "rejected": ["b"] * 2500})
    pq.write_table(table, tmp_path / "a.parquet")
    pairs, rejections = validate(read_records(str(tmp_path / "a.parquet")))
    assert len(pairs) == 2499
    check(rejections, (1204, "prompt", "not UTF-8"))


def test_values_of_parquets_own_types_are_described(tmp_path: Path) -> None:
    for value, shown in ((b"x", "1 bytes"), (datetime.date(2026, 1, 2), "2026-01-02"), ({"a": 1}, "an object with 1")):
        pq.write_table(pa.table({"prompt": [value], "chosen": ["a"], "rejected": ["b"]}), tmp_path / "a.parquet")
        _, rejections = validate(read_records(str(tmp_path / "a.parquet")))
        check(rejections, (1, "prompt", "of the wrong type"))
        assert rejections[0].found.startswith(shown)


def test_whole_numbers_stored_as_floats_in_parquet_are_integers(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "replies": ["a", "b"], "ranks": ranks} for ranks in ([1.0, 2.0], [1.0, 0.5])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    [group], rejections = validate_groups(read_records(str(tmp_path / "a.parquet")))
    assert [(rank, type(rank)) for rank in group.ranks] == [(1, int), (2, int)]
    check(rejections, (2, "ranks", "out of range"))
    rows = [{"prompt": "User: q", "tokens": tokens, "logprobs": [-1.0]} for tokens in ([5.0], [0.5])]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    [chat], rejections = validate_distillation_rows(read_records(str(tmp_path / "a.parquet")))
    assert chat.tokens == (5,)
    check(rejections, (2, "tokens", "out of range"))


def test_a_date_beyond_pythons_range_fails_only_its_row(tmp_path: Path) -> None:
    days = pa.array([0, 2**40], pa.timestamp("s"))
    pq.write_table(pa.table({"day": days, "chosen": ["a", "a"], "rejected": ["b", "b"], "prompt": ["q", "z"]}),
                   tmp_path / "a.parquet")  # fmt: skip
    pairs, rejections = validate(read_records(str(tmp_path / "a.parquet")))
    assert len(pairs) == 1
    check(rejections, (2, "day", "unreadable"))


ERRORS = (
    *(RecursionError("x"), KeyError("k"), TypeError("a\nb"), OverflowError("x" * 9000), IndexError("i"), ValueError()),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_any_exception_for_a_row_is_a_rejection(error: Exception) -> None:
    def read(record: Record) -> int:
        if record.line == 2:
            raise error
        return record.line

    rows, rejections = read_rows([Record("a", i, {}) for i in (1, 2, 3)], read)
    assert rows == [1, 3]
    assert [one.line for one in rejections] == [2]
    assert str(rejections[0]).isprintable()
    assert len(str(rejections[0])) < 300


@pytest.mark.parametrize("error", [InputError("of the whole"), MemoryError(), KeyboardInterrupt()])
def test_errors_about_more_than_a_row_are_raised(error: BaseException) -> None:
    def read(record: Record) -> int:
        raise error

    with pytest.raises(type(error)):
        read_rows([Record("a", 1, {})], read)


# --- the same for every stage

SAID = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
CHATTING = [*SAID, {"role": "user", "content": "z"}, {"role": "assistant", "content": "b"}]
STAGES: dict[str, tuple[Callable, dict]] = {
    "pairs": (lambda path: validate(read_records(path)), json.loads(GOOD)),
    "groups": (
        lambda path: validate_groups(read_records(path)),
        {"prompt": "q", "replies": ["a", "b"], "ranks": [1, 2]},
    ),
    "messages": (lambda path: validate_chats(read_records(path)), {"messages": SAID}),
    "chosen": (lambda path: validate_chosen(read_records(path)), json.loads(GOOD)),
    "taught": (
        lambda path: validate_distillation_rows(read_records(path)),
        {"prompt": "User: q\nBot:", "tokens": [1], "logprobs": [-1.0]},
    ),
    "chats": (read_chats, {"messages": CHATTING}),
    "prompts": (
        lambda path: (lambda p: ([*p.train, *p.evaluation], p.rejections))(
            read_prompts(RolloutConfig(path, eval_size=1), 0)
        ),
        {"prompt": "q"},
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_rejects_the_same_rows(stage: str, tmp_path: Path) -> None:
    read, good = STAGES[stage]
    second = json.loads(json.dumps(good).replace('"q', '"other').replace("User: q", "User: other"))
    bad = ("{" + DEEP, "broken", "[1]", '{"x": "\\ud800"}', b'{"y": "\xff"}')
    path = write(tmp_path / "a.jsonl", json.dumps(good), *bad, json.dumps(second))
    rows, rejections = read(path)
    assert len(rows) == 2
    check(
        rejections,
        (2, "(row)", "not JSON"),
        (3, "(row)", "not JSON"),
        (4, "(row)", "not an object"),
        (5, "x", "not UTF-8"),
        (6, "y", "not UTF-8"),
    )


def test_a_file_that_ends_too_early_is_named_in_one_line(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(json.dumps({"prompt": str(i * i)}) for i in range(5000)).encode())
    (tmp_path / "a\x1b.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cannot be read: .*needed: a whole file; write or fetch it again") as caught:
        read_records(str(tmp_path / "a\x1b.jsonl.gz"))
    assert str(caught.value).isprintable()


def test_the_reason_of_a_row_error_goes_into_its_rejection() -> None:
    assert RowError("f", "x", "r").at("a", 3) == Rejection("a", 3, "f", "x", "r")


def test_a_row_of_very_many_turns_is_read_in_linear_time(tmp_path: Path) -> None:
    def seconds(turns: int) -> float:
        said = [{"role": "user", "content": "q"}, *[{"role": "assistant", "content": "a"}] * turns]
        path = write(tmp_path / "a.jsonl", json.dumps({"prompt": said}), '{"prompt": "x"}')
        gc.disable()
        began = time.process_time()
        read_prompts(RolloutConfig(path, eval_size=1), 0)
        gc.enable()
        return time.process_time() - began

    few = min(seconds(3_000) for _ in range(5))
    assert min(seconds(30_000) for _ in range(3)) < 40 * few, "100 times as long where it is quadratic"
