"""Splits by prompt, by first message and by a column: what is never on both sides, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.config import RowsConfig
from lmgym.data.mixing import DataSet
from lmgym.data.pairs import validate
from lmgym.data.prompts import read_prompts
from lmgym.data.records import read_records
from lmgym.data.splitting import first_message, overlap_notes, split_by_unit, unit_keys
from lmgym.data.task_data import TaskData
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from ppo.config import RolloutConfig
from reward_models.behaviour import BehaviourTask
from reward_models.config import RewardModelConfig
from reward_models.metrics.labels import JOINT_BITS
from reward_models.objectives import MULTI_LABEL_BCE
from reward_models.pairwise import PairTask
from sft.config import SftConfig
from sft.tasks import CHAT

CHATS, TURNS = 30, 3


def messages(chat: int, turn: int) -> list[dict[str, str]]:
    """The prompt of a turn: the conversation up to it."""
    found = []
    for i in range(turn + 1):
        found.append({"role": "user", "content": f"Question {chat}" if i == 0 else f"More {chat} {i}"})
        found.append({"role": "assistant", "content": f"answer {chat} {i}"})
    return found[:-1]


def rows() -> list[dict]:
    """Each turn of each conversation as a pair, with the person who talked: one person has two conversations."""
    return [
        {"prompt": messages(chat, turn), "chosen": f"good {turn}", "rejected": f"bad {turn}", "person": f"p{chat // 2}"}
        for chat in range(CHATS)
        for turn in range(TURNS)
    ]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(path: Path, folder: Path, **settings) -> TaskData:
    config = RewardModelConfig("x", data=RowsConfig(str(path), eval_size=18, **settings))
    return PairTask().prepare(config, load_tokenizer(str(folder)))


def lines(examples) -> list[int]:
    return [int(example.origin.rpartition(":")[2]) - 1 for example in examples]


def split_line(data: TaskData) -> str:
    [line] = [note for note in data.notes if note.startswith("split by")]
    return line


@pytest.mark.parametrize(
    ("split_by", "unit", "said"),
    [
        ("first_message", lambda row: row // TURNS, "split by first message: 0 of 18 held-out pairs share"),
        ("person", lambda row: row // TURNS // 2, "split by the column person: 0 of 18 held-out pairs share"),
    ],
)
def test_no_conversation_and_no_person_is_on_both_sides(split_by, unit, said, small_models, tmp_path: Path) -> None:
    data = prepared(write(tmp_path / "a.jsonl", rows()), small_models["gpt2"], split_by=split_by)
    train, held_out = lines(data.train), lines(data.evaluation)
    assert len(held_out) == 18
    assert not {*map(unit, train)} & {*map(unit, held_out)}
    assert split_line(data).startswith(said)
    # intervals are over what was split by
    assert len({example.prompt for example in data.evaluation}) == len({*map(unit, held_out)}) < 18
    assert not any("not read: person" in note for note in data.notes) or split_by != "person"


def test_by_prompt_the_overlap_is_counted_and_said(small_models, tmp_path: Path) -> None:
    data = prepared(write(tmp_path / "a.jsonl", rows()), small_models["gpt2"], split_by="prompt")
    train, held_out = lines(data.train), lines(data.evaluation)
    shared = sum(row // TURNS in {other // TURNS for other in train} for row in held_out)
    assert shared > 10
    assert split_line(data) == (
        f"split by prompt: {shared} of 18 held-out pairs share their first message with a training row; --split_by "
        "first_message keeps them apart"
    )
    assert len({example.prompt for example in data.evaluation}) == 18


def test_training_rows_of_a_conversation_that_is_evaluated_on_are_left_out(small_models, tmp_path: Path) -> None:
    train, other = write(tmp_path / "a.jsonl", rows()), write(tmp_path / "b.jsonl", rows()[1 : 2 * TURNS : TURNS])
    by_prompt = prepared(train, small_models["gpt2"], eval_dataset=str(other))
    assert len(by_prompt.train) == CHATS * TURNS - 2
    assert split_line(by_prompt).startswith("split by prompt: 2 of 2 held-out pairs")
    whole = prepared(train, small_models["gpt2"], eval_dataset=str(other), split_by="first_message")
    assert len(whole.train) == (CHATS - 2) * TURNS
    assert {(one.field, one.reason) for one in whole.rejections} == {("first_message", "in the evaluation set too")}


def test_a_column_joins_units_that_share_a_prompt_and_a_row_without_a_value_is_its_prompts(tmp_path: Path) -> None:
    found = [
        {"prompt": "a", "chosen": "x", "rejected": "y", "group": 1},
        {"prompt": "a", "chosen": "x2", "rejected": "y", "group": "2"},
        {"prompt": "b", "chosen": "x", "rejected": "y", "group": 2},
        {"prompt": "c", "chosen": "x", "rejected": "y", "group": None},
        {"prompt": "d", "chosen": "x", "rejected": "y", "group": [3, {"z": 1}]},
        {"prompt": "e", "chosen": "x", "rejected": "y", "group": [3, {"z": 1}]},
        {"prompt": "c", "chosen": "x3", "rejected": "y", "group": ""},
    ]
    data = DataSet(str(write(tmp_path / "a.jsonl", found)), "train", split_column="group")
    pairs, _ = validate(data)
    keys = unit_keys(pairs, "group", [data])
    names = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    assert [names[key] for key in keys] == [0, 0, 0, 1, 2, 2, 1]
    shuffled = pairs[::-1]
    assert unit_keys(shuffled, "group", [data]) == keys[::-1]
    train, held_out = split_by_unit(pairs, 2, 0, keys=keys, split_by="group")
    assert len(train) + len(held_out) == 7


def test_a_column_that_no_row_has_is_refused_with_those_that_there_are(small_models, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", rows())
    with pytest.raises(InputError, match=r"--split_by 'persn': no row has a value .* one of chosen, person, prompt"):
        prepared(path, small_models["gpt2"], split_by="persn")
    one = write(tmp_path / "b.jsonl", [row | {"person": 1} for row in rows()])
    with pytest.raises(InputError, match=r"have 1 person\(s\): no split by person leaves both sides any"):
        prepared(one, small_models["gpt2"], split_by="person")


def test_sft_and_prompts_are_split_alike(small_models, tmp_path: Path) -> None:
    chats = [{"messages": [*row["prompt"], {"role": "assistant", "content": row["chosen"]}]} for row in rows()]
    path = write(tmp_path / "a.jsonl", [chat | {"who": i // TURNS % 7} for i, chat in enumerate(chats)])
    config = SftConfig("x", data=RowsConfig(str(path), eval_size=9, split_by="first_message", max_length=256))
    data = CHAT.prepare(config, load_tokenizer(str(small_models["gpt2"])))
    assert split_line(data).startswith("split by first message: 0 of 9 held-out rows")
    for split_by, unit in (("first_message", first_of), ("who", lambda task: task["who"])):
        found = read_prompts(RolloutConfig(str(path), eval_size=9, split_by=split_by), 0)
        assert not {*map(unit, found.train)} & {*map(unit, found.evaluation)}
        assert len(found.evaluation) >= 9
        assert sum(line.startswith("split by") for line in found.reading) == 1


def first_of(task) -> str:
    return task["prompt"].turns[0].text


def test_a_plain_text_is_its_own_first_message(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": f"User: {i}\nBot: hi\nUser: b"} for i in range(4)])
    found = read_prompts(RolloutConfig(str(path), eval_size=1, split_by="first_message"), 0, as_text=True)
    assert (len(found.train), len(found.evaluation)) == (3, 1)


def test_logs_are_split_by_user_and_refuse_another_unit(small_models, tmp_path: Path) -> None:
    path = tmp_path / "none.parquet"
    config = replace(RewardModelConfig("x"), data=RowsConfig(str(path), split_by="first_message", eval_size=0.1))
    with pytest.raises(InputError, match="--split_by 'first_message' of behaviour logs; needed: leave it out"):
        BehaviourTask(JOINT_BITS, MULTI_LABEL_BCE).prepare(config, None)


def test_first_messages_are_compared_without_case_and_white_space(small_models, tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", [{"prompt": text, "chosen": "a", "rejected": "b"} for text in ("Hi  You", "hi\nyou", "x")]
    )
    pairs, _ = validate(read_records(str(path)))
    assert [first_message(pair) for pair in pairs] == ["user hi you", "user hi you", "user x"][: len(pairs)]


def test_by_default_rows_are_split_by_first_message_and_by_prompt_where_most_begin_alike(
    small_models, tmp_path: Path
) -> None:
    data = prepared(write(tmp_path / "a.jsonl", rows()), small_models["gpt2"])
    assert split_line(data).startswith("split by first message: 0 of 18 held-out pairs share")
    alike = [{"prompt": f"User: hi\nBot: yes?\nUser: tea {i}?", "chosen": "yes", "rejected": "no"} for i in range(30)]
    data = prepared(write(tmp_path / "b.jsonl", alike), small_models["gpt2"])
    assert split_line(data).startswith("split by prompt: ")


def test_a_split_of_single_messages_by_default_is_that_by_prompt(small_models, tmp_path: Path) -> None:
    single = [{"prompt": f"tea {i}?", "chosen": "yes", "rejected": "no"} for i in range(60)]
    path = write(tmp_path / "a.jsonl", single)
    held_out = [lines(prepared(path, small_models["gpt2"], split_by=way).evaluation) for way in ("auto", "prompt")]
    assert held_out[0] == held_out[1]


def test_held_out_questions_that_differ_from_trained_ones_in_punctuation_are_counted(tmp_path: Path) -> None:
    rows = [{"prompt": text, "chosen": "a", "rejected": "b"} for text in ("Tea, now?", "tea  now", "tea, no?", "x")]
    pairs, _ = validate(read_records(str(write(tmp_path / "a.jsonl", rows))))
    [line] = overlap_notes(pairs[:1], pairs[1:], "prompt", "pairs")
    assert line == (
        "split by prompt: 0 of 3 held-out pairs share their first message with a training row, and 1 but for "
        "punctuation"
    )
