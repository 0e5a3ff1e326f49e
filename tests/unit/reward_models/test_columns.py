"""A bad value of a column of millions fails its row alone: logs of users, and the sets that scorers are judged on."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damaged_rows import DEEP, broken_text, check, write

from lmgym.models.loading import load_tokenizer
from reward_models.logs import read_log
from reward_models.metrics.evaluations import RANK, RANKING, RETRY, read_evaluation
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED, MESSAGES_FIRST_DAYS


def log_line(**fields: object) -> str:
    good = {"input_text": "User: q\nBot:", "output_text": "a", "user_id": 1, "accepted": 1}
    return json.dumps({**good, "remaining_user_messages": 3, **fields})


def test_a_bad_value_of_a_log_fails_its_row_alone(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        log_line(),
        log_line(remaining_user_messages=float("inf")),
        log_line(remaining_user_messages="many"),
        log_line(remaining_user_messages=[1]),
        log_line(remaining_user_messages=10**400),
        log_line(remaining_user_messages=-1),
        log_line(remaining_user_messages="4"),
        log_line(accepted=2),
        log_line(input_text=5),
        log_line(output_text="\ud800"),
        log_line(user_id={"a": 1}),
        log_line(user_id=None),
        log_line(remaining_user_messages=None),
        '{"x": ' + DEEP,
        log_line(user_id="seven"),
    )
    log = read_log(path, "train", ACCEPTED_AND_CONTINUED)
    assert log.columns.line[log.usable].tolist() == [1, 7, 15]
    assert log.labels[log.usable].tolist() == [1, 1, 1]
    assert log.users.tolist() == ["1", "1", "seven"]
    assert log.read == 15
    remaining = "remaining_user_messages"
    check(
        sorted(log.rejections, key=lambda one: one.line),
        (2, remaining, "out of range"), (3, remaining, "of the wrong type"), (4, remaining, "of the wrong type"),
        (5, remaining, "out of range"), (6, remaining, "out of range"), (8, "accepted", "out of range"),
        (9, "input_text", "of the wrong type"), (10, "output_text", "not UTF-8"), (11, "user_id", "of the wrong type"),
        (12, "user_id", "without a value"), (13, "accepted, remaining_user_messages", "without a value"),
        (14, "(row)", "nested too deeply"),
    )  # fmt: skip


def test_a_bad_cell_of_a_csv_log_fails_its_row_alone(tmp_path: Path) -> None:
    rows = [f"User: q{i},a,u{i},{i % 3},{i},0" for i in range(50)]
    rows[7] = "User: q,a,u,abc,0,0"
    rows[9] = "User: q,a,u,inf,0,0"
    path = write(tmp_path / "a.csv", "input_text,output_text,user_id,d1,d2,d3", *rows)
    log = read_log(path, "train", MESSAGES_FIRST_DAYS)
    assert len(log.usable) == 48
    check(log.rejections, (9, "d1", "of the wrong type"), (11, "d1", "of the wrong type"))
    assert log.rejections[0].found == "'abc'; needed: counts of 0 to 1e9, or null"
    assert log.labels[3] == pytest.approx((3 % 3 + 3) / 200)


def test_a_bad_value_of_a_parquet_log_fails_its_row_alone(tmp_path: Path) -> None:
    days = np.arange(40, dtype=np.float64)
    days[3], days[4] = np.inf, -1
    table = pa.table(
        {
            "input_text": broken_text([f"User: q{i}" for i in range(40)], 5),
            "output_text": pa.array(["a"] * 40).dictionary_encode(),
            "user_id": [f"u{i}" for i in range(40)],
            "d1": days,
            "d2": [True] * 40,
            "d3": pa.nulls(40),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    log = read_log(str(tmp_path / "a.parquet"), "train", MESSAGES_FIRST_DAYS)
    assert len(log.usable) == 37
    check(log.rejections, (4, "d1", "out of range"), (5, "d1", "out of range"), (6, "input_text", "not UTF-8"))
    assert read_log(str(tmp_path / "a.parquet"), "train", MESSAGES_FIRST_DAYS, max_rows=5).read == 5


def test_files_of_one_log_may_differ_in_their_types(tmp_path: Path) -> None:
    write(tmp_path / "train-1.jsonl", log_line(user_id=7), log_line(user_id=8))
    write(tmp_path / "train-2.jsonl", log_line(user_id="x", accepted="1"), log_line(user_id="y", accepted="no"))
    log = read_log(str(tmp_path), "train", ACCEPTED_AND_CONTINUED)
    assert log.users.tolist() == ["7", "8", "x"]
    check(log.rejections, (2, "accepted", "of the wrong type"))
    assert log.rejections[0].file.endswith("train-2.jsonl")


@pytest.fixture(scope="module")
def tokenizer(small_models):
    return load_tokenizer(str(small_models["gpt2"]))


def test_a_bad_row_of_an_evaluation_set_is_counted_with_its_reason(tokenizer, tmp_path: Path) -> None:
    good = {"text": "User: q\nBot: a", "retried": 1, "end_of_conversation": 0, "user_id": 1}
    bad = [{"retried": 2}, {"retried": None}, {"end_of_conversation": "x"}, {"text": 5}, {"user_id": [1]},
           {"text": "User: q"}, {"text": "User: q\nBot: " + "soup " * 99}]  # fmt: skip
    rows = [good, *({**good, **changes} for changes in bad), {**good, "retried": 0}]
    path = write(tmp_path / "retry_eval.jsonl", *map(json.dumps, rows), DEEP)
    found = read_evaluation(Path(path), RETRY, 100, tokenizer, 64)
    assert found.columns["retried"].tolist() == [1, 0]
    assert found.left_out.startswith("8 of 10 rows left out: ")
    for reason in ("1 out of range (field retried)", "1 without a value (field retried)"):
        assert reason in found.left_out
    assert found.tally.is_alarming


def test_a_broken_row_of_a_ranking_leaves_the_other_groups_whole(tokenizer, tmp_path: Path) -> None:
    rows = [{"text": f"User: q\nBot: a{i}", "id": str(i // 2), RANK: 1 + i % 2} for i in range(8)]
    rows[0][RANK] = None
    path = write(tmp_path / "ranking_eval.jsonl", *map(json.dumps, rows))
    found = read_evaluation(Path(path), RANKING, 7, tokenizer, 64)
    assert found.columns["id"].tolist() == ["0", "1", "1", "2", "2"]
    assert found.left_out == f"1 of 6 rows left out: 1 without a value (field {RANK})"
