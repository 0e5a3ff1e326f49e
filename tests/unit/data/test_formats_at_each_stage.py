"""Each format of rows at every stage, by a row of each and by real rows; no column is left out silently."""

import re
from pathlib import Path
from typing import Any

import pytest
from format_rows import CASES, Case, Read, prompts_of, read_one, records, refusal, scored, talk

from lmgym.config import ColumnConfig
from lmgym.data.pairs import validate
from lmgym.data.prompts import FORMS, read_prompts
from lmgym.data.records import Record, read_records
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn, words_of
from ppo.config import RolloutConfig
from preferences import thumbs
from reward_models.kwise import validate_groups
from sft.conversations import validate_chats, validate_chosen, validate_distillation_rows

SHARED = Path(__file__).parents[4] / "shared/data"
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_sft_learns_the_reply_of_each_format(case: Case) -> None:
    found = read_one(validate_chats, case.row)
    if case.chat is None and not case.text:
        assert found is None
        return
    assert found is not None
    [chat] = found
    assert (chat.conversation, chat.outputs) == (case.chat or (Conversation(()), ()))
    assert chat.text == case.text


@each_case
def test_pairs_and_their_chosen_side_are_those_of_each_format(case: Case) -> None:
    found, chosen = read_one(validate, case.row), read_one(validate_chosen, case.row)
    if case.pair is None:
        assert found is None
        assert chosen is None
        return
    assert found is not None
    assert chosen is not None
    [pair], [chat] = found, chosen
    assert (pair.conversation, pair.chosen, pair.rejected) == (case.asks, *case.pair)
    assert (pair.margin, pair.preference) == (0, 1)
    assert chat.conversation.turns == (*pair.conversation.turns, Turn("bot", pair.chosen))
    assert chat.prompt == pair.conversation


@each_case
def test_thumbs_are_those_of_each_format(case: Case) -> None:
    found = read_one(thumbs.validate, case.row)
    expected = case.liked or tuple(zip(case.pair or (), (True, False), strict=False))
    if not expected:
        assert found is None
        return
    assert found is not None
    assert [(thumb.conversation, thumb.reply, thumb.liked) for thumb in found] == [
        (case.asks, reply, liked) for reply, liked in expected
    ]


@each_case
def test_groups_are_those_of_each_format(case: Case) -> None:
    found = read_one(validate_groups, case.row)
    if case.group is None:
        assert found is None
        return
    assert found is not None
    [group] = found
    assert (group.conversation, group.replies, group.ranks) == (case.asks, *case.group)


@each_case
def test_prompts_are_those_of_each_format_and_other_columns_reach_the_reward(case: Case, tmp_path: Path) -> None:
    [task], _ = prompts_of(tmp_path, case.row)
    assert task.pop("prompt") == case.asks
    others = {name: value for name, value in case.row.items() if name not in (*FORMS, "rejected")}
    if "preference" in others:
        others["preference"] = None  # which we use for a probability
    assert task == others


@each_case
def test_score_reads_the_replies_of_each_format(case: Case) -> None:
    expected = case.scored or case.pair or (case.chat and (case.chat[0].turns[-1].text,))
    if not expected:
        with pytest.raises((InputError, AssertionError)):
            scored(case.row)
        return
    [row] = scored(case.row)
    assert (row.conversation, row.replies) == (case.asks, expected)


@each_case
def test_columns_that_are_not_read_are_named(case: Case) -> None:
    notes: list[str] = []
    read: Read = validate if case.pair else thumbs.validate if case.liked and not case.chat else validate_chats
    try:
        read(records(case.row), notes=notes)
    except InputError:
        assert case.pair is None
        assert case.chat is None
        return
    [line] = notes
    assert line.startswith("rows.jsonl: 1 rows; read: ")
    _, _, unread = line.partition("; not read: ")
    assert unread == ", ".join(case.unread)


STAGE_OF: dict[str, Read] = {
    "a conversation": validate_chats,
    "the same": validate_chats,
    "a text": validate_chats,
    "a thumb": thumbs.validate,
    "a pair": validate,
    "a ranking": validate_groups,
    "read by `train sft soft_targets`": validate_distillation_rows,
}


def test_the_rows_of_the_page_on_formats_are_read_as_it_says(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/data_formats.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|(.*?)\|(.*?)\| `([{\[].*[}\]])` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 40
    for name, _, example, made in rows:
        path = tmp_path / "rows.jsonl"
        path.write_text(f"{example}\n" * (1 + example.startswith("[")))  # a single list may be a list of rows
        kind = next((kind for kind in STAGE_OF if made.startswith(kind)), "a prompt")
        assert len(read_prompts(RolloutConfig(str(path), eval_size=0), 0).train) == 1, f"PPO reads no prompt: {name}"
        if kind == "a prompt":
            assert made.startswith(kind), made
            continue
        found, rejections = STAGE_OF[kind](read_records(str(path)))
        assert found, f"{name}: {rejections}"
        assert rejections == []
        if kind == "a pair":
            assert (words_of(found[0].chosen), words_of(found[0].rejected)) in (
                ("Hello!", "What?"),
                ("A cat types.", "Cat."),
            )


def test_a_column_that_ppo_gives_to_the_reward_function_is_said_to_go_there(tmp_path: Path) -> None:
    _, [line] = prompts_of(tmp_path, {"question": "2 and 2 apples?", "answer": "2+2 = 4\n#### 4"})
    read, _, rest = line.partition("; to the reward function: ")
    assert read.startswith("rows.jsonl: 1 rows; read: question")
    assert rest == "answer (1)"


# real rows


def real_rows(name: str) -> list[Record]:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"needs {name} of ../shared/data, which is not here")
    return read_records(str(path))


def raw(record: Record) -> dict[str, Any]:
    return dict(record.row or record.fields)


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("llmbar/pairs.jsonl", ("subset", "id", "first_is_chosen")),
        ("xstest/benign_pairs.jsonl", ("type",)),
        ("hh-rlhf-harmless/pairs.jsonl.gz", ()),
    ],
)
def test_real_pairs_are_read(name: str, unread: tuple[str, ...]) -> None:
    found = real_rows(name)
    notes: list[str] = []
    pairs, rejections = validate(found, notes=notes)
    assert len(pairs) + len(rejections) == len(found)
    assert len(pairs) > 0.95 * len(found)
    assert notes[0].partition("; not read: ")[2] == ", ".join(f"{column} ({len(found):,})" for column in unread)
    of_line = {record.line: raw(record) for record in found}
    for pair in pairs:
        row = of_line[pair.line]
        assert row["chosen"].rstrip().endswith(words_of(pair.chosen))
        assert row["rejected"].rstrip().endswith(words_of(pair.rejected))
        if "prompt" in row:
            assert pair.conversation == talk(row["prompt"].strip())
        assert {turn.speaker for turn in pair.conversation.turns} <= {"user", "bot"}
        assert "\n\nHuman:" not in pair.chosen + pair.rejected


def test_real_questions_of_gsm8k_are_prompts_and_their_reply_is_named_by_a_flag(tmp_path: Path) -> None:
    rows = real_rows("gsm8k-solutions/train_1000.jsonl.gz")
    tasks, [line] = prompts_of(tmp_path, *map(raw, rows[:50]))
    assert [task["answer"] for task in tasks] == [raw(row)["answer"] for row in rows[:50]]
    assert line.startswith("rows.jsonl: 50 rows; read: prompt (plain text)")
    assert "holds no conversations: found the columns answer, prompt, solution" in refusal(validate_chats, raw(rows[0]))
    chats, _ = validate_chats(rows, columns=ColumnConfig(reply_column="solution"))
    assert len(chats) == 1000
    assert chats[0].conversation == talk(raw(rows[0])["prompt"].strip(), raw(rows[0])["solution"].strip())
    original = [{"question": raw(row)["prompt"], "answer": raw(row)["solution"]} for row in rows]  # as it is published
    assert [chat.conversation for chat in validate_chats(records(*original))[0]] == [
        chat.conversation for chat in chats
    ]
