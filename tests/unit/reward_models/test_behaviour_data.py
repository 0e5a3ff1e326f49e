"""Logs and ranked groups: read, validated, limited, split by user and tokenised; what is left out is said."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig
from lmgym.data.columns import read_columns
from lmgym.data.records import Record
from lmgym.data.rejections import NOT_JSON, Rejection, RowError
from lmgym.data.truncation import tokenize_replies
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Replies, Turn
from reward_models.behaviour import BehaviourTask
from reward_models.config import RewardModelConfig
from reward_models.kwise import KwiseTask, validate_groups
from reward_models.logs import TokenRows
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED, FLAG, JOINT_BITS, MESSAGES_FIRST_DAYS, RESPONDS_180S
from reward_models.objectives import CROSS_ENTROPY, MULTI_LABEL_BCE, SQUARED_ERROR
from reward_models.tasks import TaskData

RETRY = BehaviourTask(ACCEPTED_AND_CONTINUED, CROSS_ENTROPY)
RESPONDS = BehaviourTask(RESPONDS_180S, CROSS_ENTROPY)
DAYS = BehaviourTask(MESSAGES_FIRST_DAYS, SQUARED_ERROR)
JOINT = BehaviourTask(JOINT_BITS, MULTI_LABEL_BCE)


@pytest.fixture(scope="module")
def tokenizer(small_models):
    return load_tokenizer(str(small_models["gpt2"]))


@pytest.fixture
def prepare(small_models, tokenizer):
    """`task.prepare` on a file with changed settings."""

    def go(task, path: Path, **data) -> TaskData:
        own = {name: data.pop(name) for name in ("rows_per_user", "rows_per_user_mode", "probe_data") if name in data}
        settings = RowsConfig(str(path), **{"max_length": 128, "eval_size": 0.25} | data)
        model, optimizer = ModelConfig(str(small_models["gpt2"])), OptimizerConfig(seed=3)
        config = RewardModelConfig("x", model, settings, optimizer, **own)
        return task.prepare(config, tokenizer)

    return go


def source_rows(data: TaskData) -> list[int]:
    """Lines of the file from 1 that a side holds."""
    return [int(line) for side in (data.train, data.evaluation) for line in side.line]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_rows_become_examples_with_the_labels_and_tokens_of_their_line(
    suffix: str, prepare, write_log, tokenizer, tmp_path: Path
) -> None:
    columns = write_log(tmp_path / f"logs.{suffix}")
    data = prepare(JOINT, tmp_path / f"logs.{suffix}")
    assert data.counts == {
        "train_rows": 90, "eval_rows": 30, "truncated_rows": 0, "shortened_rows": 0, "rejected_rows": 0,
        "unused_rows": 0,
    }  # fmt: skip
    assert sorted(source_rows(data)) == list(range(1, 121))
    labels = JOINT_BITS.compute(*(columns[name] for name in JOINT_BITS.columns))
    for side in (data.train, data.evaluation):
        for example, line, row_id, user in zip(side, side.line, side.row_ids, side.users, strict=True):
            row = int(line) - 1
            np.testing.assert_array_equal(example.label, labels[row])
            assert (row_id, user) == (columns["row_id"][row], columns["user_id"][row])
            text = tokenizer.decode(example.replies.prefix + example.replies.suffixes[0])
            assert text == f"{columns['input_text'][row]} {columns['output_text'][row].strip()}{tokenizer.eos_token}"
            assert example.origin == f"logs.{suffix}:{line}"
    assert np.isnan(np.concatenate([data.train.labels, data.evaluation.labels])).any()


def test_no_user_is_on_both_sides_and_the_seed_decides_who_is_held_out(prepare, write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "logs.parquet", rows=400)
    data = prepare(RETRY, tmp_path / "logs.parquet", eval_size=100)
    assert not set(data.train.users) & set(data.evaluation.users)
    assert (len(data.train), len(data.evaluation)) == (300, 100)
    again = prepare(RETRY, tmp_path / "logs.parquet", eval_size=100)
    assert again.fingerprint == data.fingerprint
    assert again.evaluation.users.tolist() == data.evaluation.users.tolist()


def test_train_size_is_an_upper_limit_and_the_rest_is_counted(prepare, write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "logs.parquet")
    data = prepare(RETRY, tmp_path / "logs.parquet", eval_size=20, train_size=33)
    assert (len(data.train), len(data.evaluation), data.counts["unused_rows"]) == (33, 20, 67)
    assert len(prepare(RETRY, tmp_path / "logs.parquet", eval_size=20, train_size=10**7).train) == 100
    with pytest.raises(InputError, match="--train_size 0 leaves nothing to train on"):
        prepare(RETRY, tmp_path / "logs.parquet", eval_size=20, train_size=0)


@pytest.mark.parametrize(("mode", "kept"), [("unchanged", [1, 2, 3]), ("reverse", [8, 9, 10])])
def test_rows_a_user_are_limited_to_the_first_or_the_last(mode, kept, prepare, write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "logs.parquet")
    data = prepare(DAYS, tmp_path / "logs.parquet", rows_per_user=3, rows_per_user_mode=mode)
    assert sorted(source_rows(data)) == sorted(10 * user + row for user in range(12) for row in kept)
    assert data.counts["unused_rows"] == 84
    assert set(Counter(np.concatenate([data.train.users, data.evaluation.users]).tolist()).values()) == {3}


def test_a_limit_of_no_rows_a_user_is_refused(prepare, write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "logs.parquet")
    with pytest.raises(InputError, match="--rows_per_user 0 keeps none of the 120 rows; needed: 1 or more"):
        prepare(RETRY, tmp_path / "logs.parquet", rows_per_user=0)


def test_rows_without_text_user_or_label_are_rejected_with_line_and_field(prepare, write_log, tmp_path: Path) -> None:
    good = write_log(tmp_path / "good.parquet")
    inputs, outputs, users, times = (
        list(good[n]) for n in ("input_text", "output_text", "user_id", "time_delta_till_user_response")
    )
    times = [30.0 if t is None else t for t in times]
    inputs[3], inputs[4], outputs[5], outputs[6], users[7], times[8] = None, " \n", "", None, None, None
    path = tmp_path / "logs.parquet"
    write_log(path, input_text=inputs, output_text=outputs, user_id=users, time_delta_till_user_response=times)
    data = prepare(RESPONDS, path)
    found = {(r.line, r.field): r.found for r in data.rejections}
    assert found == {
        (4, "input_text"): "null or empty",
        (5, "input_text"): "null or empty",
        (6, "output_text"): "null or empty",
        (7, "output_text"): "null or empty",
        (8, "user_id"): "null",
        (9, "time_delta_till_user_response"): "null",
    }
    assert data.counts["rejected_rows"] == 6
    assert len(data.train) + len(data.evaluation) == 114
    assert {r.file for r in data.rejections} == {str(path)}


def test_a_line_that_is_no_json_is_a_rejection_too(prepare, write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "logs.jsonl", rows=40)
    with (tmp_path / "logs.jsonl").open("a") as lines:
        lines.write("{broken\n")
    data = prepare(DAYS, tmp_path / "logs.jsonl")
    assert [(r.line, r.field) for r in data.rejections] == [(41, "(row)")]


def test_a_reply_that_does_not_fit_is_rejected_and_labels_stay_with_their_rows(
    prepare, write_log, tmp_path: Path
) -> None:
    good = write_log(tmp_path / "good.parquet")
    outputs = list(good["output_text"])
    outputs[10] = "soup " * 200
    columns = write_log(tmp_path / "logs.parquet", output_text=outputs)
    data = prepare(DAYS, tmp_path / "logs.parquet", max_length=48)
    assert 11 in {r.line for r in data.rejections if "max_length=48" in r.found}
    assert data.truncated > 0
    days = MESSAGES_FIRST_DAYS.compute(*(columns[n] for n in MESSAGES_FIRST_DAYS.columns))
    for side in (data.train, data.evaluation):
        np.testing.assert_array_equal(side.labels, days[side.line - 1])


REFUSED = {
    "times of -5": (RESPONDS, {"time_delta_till_user_response": [-5.0] * 120}, r"used: line 1 holds -5.0; needed: sec"),
    "negative counts": (RETRY, {"remaining_user_messages": [-2] * 120}, r"column remaining_user_m.* holds -2"),
    "text for a number": (RETRY, {"accepted": ["yes"] * 120}, r"column accepted of .* holds 'yes'; needed: 0, 1"),
    "one class": (RETRY, {"accepted": [0] * 120}, r"the label accepted_and_continued is 0 in all 90 rows to train on"),
    "one bit of one class": (JOINT, {"d2": [3] * 120}, r"the label back_d2 is 1 in all 90 rows to train on"),
    "the same number": (DAYS, {n: [5] * 120 for n in ("d1", "d2", "d3")}, r"messages_first_days is 0.075 in all 90"),
    "no label": (RESPONDS, {"time_delta_till_user_response": [float("nan")] * 120}, r"none of the 120 rows .* usable"),
    "one user": (RETRY, {"user_id": [7] * 120}, r"the rows cannot be split by user"),
    "a number for text": (RETRY, {"output_text": list(range(120))}, r"column output_text .* holds 0; needed: text"),
    "users in halves": (RETRY, {"user_id": [i + 0.5 for i in range(120)]}, r"user_id .* needed: integers or text"),
    "a missing column": (RETRY, {"accepted": None, "acepted": [0, 1] * 60},
                         r"lacks the column\(s\) accepted; found: .*is acepted meant to be accepted\? rename it"),
    "no user": (DAYS, {"user_id": None}, r"lacks the column\(s\) user_id; found: row_id, input_text"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_log_that_cannot_be_trained_on_is_refused(case: str, prepare, write_log, tmp_path: Path) -> None:
    task, replaced, said = REFUSED[case]
    write_log(tmp_path / "logs.parquet", **replaced)
    with pytest.raises(InputError, match=said):
        prepare(task, tmp_path / "logs.parquet")


@pytest.mark.parametrize("size", [120, 500])
def test_an_evaluation_of_more_rows_than_there_are_is_a_tenth(size, prepare, write_log, tmp_path) -> None:
    write_log(tmp_path / "logs.parquet")
    data = prepare(RETRY, tmp_path / "logs.parquet", eval_size=size)
    assert len(data.evaluation) in range(10, 21)  # whole users, of ten rows each
    assert any(f"warning: --eval_size {size} is all of the 120 rows or more" in note for note in data.notes)


@pytest.mark.parametrize("size", [0, -1])
def test_an_evaluation_that_takes_nothing_is_refused(size, prepare, write_log, tmp_path) -> None:
    write_log(tmp_path / "logs.parquet")
    with pytest.raises(InputError, match=r"--eval_size .* of 120 rows; needed: a share below 1, or a number below 120"):
        prepare(RETRY, tmp_path / "logs.parquet", eval_size=size)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_an_empty_file_is_refused(suffix: str, prepare, write_log, tmp_path: Path) -> None:
    path = tmp_path / f"logs.{suffix}"
    write_log(tmp_path / "full.parquet", rows=10)
    if suffix == "parquet":
        pq.write_table(pq.read_table(tmp_path / "full.parquet").slice(0, 0), path)
    else:
        path.touch()
    with pytest.raises(InputError, match="is empty: found 0 rows"):
        prepare(RETRY, path)


def test_the_alias_of_the_remaining_messages_is_read(prepare, write_log, tmp_path: Path) -> None:
    columns = write_log(tmp_path / "logs.parquet")
    renamed = {"remaining_user_messages": None, "n_user_messages_remaining": columns["remaining_user_messages"]}
    write_log(tmp_path / "alias.parquet", **renamed)
    one, two = (prepare(RETRY, tmp_path / f"{name}.parquet") for name in ("logs", "alias"))
    assert one.fingerprint == two.fingerprint


def test_an_evaluation_file_of_other_users_is_taken_whole_and_shared_users_are_refused(
    prepare, write_log, tmp_path: Path
) -> None:
    write_log(tmp_path / "train.parquet")
    write_log(tmp_path / "test.parquet", rows=50, first_user=100, seed=1)
    data = prepare(RETRY, tmp_path / "train.parquet", eval_dataset=str(tmp_path / "test.parquet"))
    assert (len(data.train), len(data.evaluation)) == (120, 50)
    write_log(tmp_path / "leak.parquet", rows=50, first_user=9, seed=1, user_id=[str(9 + i // 10) for i in range(50)])
    with pytest.raises(InputError, match=r"found 3 users on both sides"):
        prepare(RETRY, tmp_path / "train.parquet", eval_dataset=str(tmp_path / "leak.parquet"))


def test_gold_utilities_are_joined_by_row_id(prepare, write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "logs.parquet")
    rows = np.random.default_rng(0).permutation(np.arange(1005, 1120))
    pq.write_table(pa.table({"row_id": rows, "utility": rows * 2.0}), tmp_path / "gold.parquet")
    held_out = prepare(RETRY, tmp_path / "logs.parquet", probe_data=str(tmp_path), eval_size=100).evaluation
    wanted = np.where(held_out.row_ids >= 1005, held_out.row_ids * 2.0, np.nan)
    np.testing.assert_array_equal(held_out.utility, wanted)


def test_many_users_of_one_row_each_are_split_at_once(tmp_path: Path, write_log) -> None:
    from reward_models.logs import limit_and_split, read_log

    rows = 200_000
    table = pa.table(
        {
            "input_text": ["User: hi"] * rows,
            "output_text": ["hello"] * rows,
            "user_id": [f"u{i}" for i in range(rows)],
            **{name: np.arange(rows) % 7 for name in ("d1", "d2", "d3")},
        }
    )
    pq.write_table(table, tmp_path / "logs.parquet")
    log = read_log(str(tmp_path / "logs.parquet"), "train", MESSAGES_FIRST_DAYS)
    train, held_out, unused, _ = limit_and_split(log, RewardModelConfig("x", rows_per_user=1))
    assert (len(train), len(held_out), unused) == (180_000, 20_000, 0)
    assert not len(np.intersect1d(train, held_out))


def test_token_rows_give_back_what_they_were_made_of() -> None:
    ids, zeros = np.array([5, 6, 7, 8, 9], np.int32), np.zeros(3, np.int32)
    rows = TokenRows(ids, np.array([2, 1, 2]), np.array([0, 3, 0]), np.array([0, 0, 4]))
    assert list(rows) == [Replies([5], [[6]]), Replies([], [[7]], 3), Replies([8], [[9]], 0, 4)]
    assert (rows.truncated, rows.shortened_rows) == (2, 1)
    assert TokenRows(ids, np.array([2, 1, 2]), zeros, zeros).truncated == 0
    assert [r.tokens for r in rows[1:]] == [1, 2]


def test_columns_of_several_files_keep_their_file_and_line(write_log, tmp_path: Path) -> None:
    write_log(tmp_path / "train-1.parquet", rows=3)
    write_log(tmp_path / "train-2.jsonl", rows=2)
    found = read_columns(str(tmp_path), {"accepted": FLAG, "absent": FLAG})
    assert found.table.column_names == ["accepted"]
    assert found.table.num_rows == 5
    assert [Path(found.files[i]).name for i in found.file] == ["train-1.parquet"] * 3 + ["train-2.jsonl"] * 2
    assert found.line.tolist() == [1, 2, 3, 1, 2]


# --- the fast ways of text.py are the slow ones


def test_what_is_truncated_does_not_depend_on_its_batch(tokenizer) -> None:
    long = Conversation((Turn("user", "soup " * 40),))
    short = Conversation((Turn("user", "hi"),))
    both = tokenize_replies(tokenizer, [short, long], [["yes"], ["yes"]], 24)
    assert [row.truncated for row in both] == [False, True]
    assert both == [tokenize_replies(tokenizer, [c], [["yes"]], 24)[0] for c in (short, long)]


# --- ranked groups


def group(**fields) -> Record:
    return Record("k.jsonl", 4, {"prompt": "User: hi", "replies": ["a", "b", "c"], "ranks": [2, 1, 2]} | fields)


def test_a_group_is_read_from_text_or_messages() -> None:
    rows = [group(), group(prompt=[{"role": "user", "content": "hi"}]), group(replies='["a", "b", "c"]')]
    groups, rejections = validate_groups(rows)
    assert rejections == []
    assert len(set(groups)) == 1
    assert (groups[0].replies, groups[0].ranks) == (("a", "b", "c"), (2, 1, 2))


@pytest.mark.parametrize(
    ("fields", "field", "found"),
    [
        ({"replies": ["a"], "ranks": [1]}, "replies", "1 of them; needed: at least 2"),
        ({"ranks": [1, 2]}, "ranks", "2 of them for 3 replies"),
        ({"ranks": [-1, 1, 2]}, "ranks", "-1; needed: integers from 0 or 1"),
        ({"ranks": [1.5, 1, 2]}, "ranks", "1.5; needed"),
        ({"ranks": None}, "ranks", "null"),
        ({"replies": ["a", " ", "c"]}, "replies", "' '; needed: text"),
        ({"replies": list("abcdef"), "ranks": [1, 2, 2, 2, 2, 2]}, "ranks", "5 replies of rank 2; needed: at most 4"),
        ({"ranks": [1, 1, 1]}, "ranks", "all 3 replies tied"),
        ({"prompt": ""}, "prompt", "no turn before the reply"),
        ({"prompt": 5}, "prompt", "5; needed: text or messages"),
    ],
)
def test_a_group_that_cannot_be_used_says_why(fields: dict, field: str, found: str) -> None:
    groups, (rejection,) = validate_groups([group(), group(**fields)])
    assert len(groups) == 1
    assert (rejection.line, rejection.field) == (4, field)
    assert found in rejection.found


def test_groups_are_split_by_prompt_and_their_replies_share_a_prefix(prepare, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"User: question {i // 2}", "replies": ["yes", "no", "well"][:k], "ranks": [1, 2, 3][:k]}
        for i in range(40)
        for k in [2 + i % 2]
    ]
    path = tmp_path / "k.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = prepare(KwiseTask(), path)
    assert data.counts == {
        "train_groups": 30,
        "eval_groups": 10,
        "truncated_groups": 0,
        "shortened_groups": 0,
        "rejected_rows": 0,
    }
    assert data.replies == 3
    assert all(len(e.replies.suffixes) == len(e.ranks) for e in data.train)
    assert all(len(e.replies.prefix) > 4 for e in data.train)
    lines = [[int(e.origin.rpartition(":")[2]) - 1 for e in side] for side in (data.train, data.evaluation)]
    assert not {i // 2 for i in lines[0]} & {i // 2 for i in lines[1]}


def test_missing_columns_of_groups_are_named() -> None:
    with pytest.raises(InputError, match="holds no groups: found the columns prompt, replies; needed: prompt, replies"):
        validate_groups([Record("k.jsonl", 1, {"prompt": "x", "replies": ["a"]})])
    broken = replace(group(), fault=RowError("(row)", "not JSON: x", NOT_JSON))
    assert validate_groups([group(), broken])[1] == [Rejection("k.jsonl", 4, "(row)", "not JSON: x", NOT_JSON)]
