"""Columns that nothing reads and that answers may need: passages and options, by what they hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmgym.config import ColumnConfig
from lmgym.data.mixing import read_sets
from lmgym.data.records import Record
from lmgym.data.unread import as_text, options_of
from lmgym.errors import InputError
from sft.conversations import validate_chats


def rows(**columns: Any) -> list[Record]:
    """Ten questions on sums with further columns, in which {} is the row's number."""

    def filled(value: Any, i: int) -> Any:
        if isinstance(value, dict):
            return {key: filled(item, i) for key, item in value.items()}
        if isinstance(value, list):
            return [filled(item, i) for item in value]
        return value.replace("{}", str(i)) if isinstance(value, str) else value

    usual = {"question": "How many nuts has she on day {}?", "answer": "She has {} nuts then."}
    return [Record("rows.jsonl", i, filled({**usual, **columns}, i)) for i in range(1, 11)]


NEEDED = [
    {"body": "Ann has {} nuts and gets one more nut."},
    {"story": ["Ann has {} nuts.", "She gets one more from Bob."]},
    {"facts": {"title": ["Ann"], "sentences": [["Ann has {} nuts and finds more."]]}},
    {"options": {"A": "one", "B": "two"}, "answer": "B"},
    {"choices": ["{} nuts", "no nuts"], "answer": "{} nuts"},
    {"choices": {"text": ["one", "two"], "label": ["A", "B"]}, "answer": "A"},
    {"endings": ["she slept", "she left", "she sang"], "answer": "2"},
]
UNNEEDED = [
    {"id": "row-{}", "source": "a school book", "category": "sums", "difficulty": 3, "url": "https://a.example/{}/b/c"},
    {"tags": ["sums", "nuts"]},
    {"copy": "Question: How many nuts has she on day {}? Answer: She has {} nuts then."},
    {"topic": "nuts {}"},
    {
        "meta": {
            "game": "nuts",
            "experiment": "common",
            "task_id": 3,
            "player": "Player 1",
            "model": "mock",
            "by": "a b",
        }
    },
]


@pytest.mark.parametrize("columns", NEEDED, ids=lambda columns: next(iter(columns)))
def test_a_set_whose_answers_may_need_an_unread_column_is_refused_until_a_flag_says_what_to_do(columns: dict) -> None:
    name = next(iter(columns))
    with pytest.raises(
        InputError, match=rf"nothing reads the column {name} \(10 rows, line 1: .*--ignore_columns {name}$"
    ):
        validate_chats(rows(**columns))
    notes: list[str] = []
    chats, _ = validate_chats(rows(**columns), columns=ColumnConfig(ignore_columns=name), notes=notes)
    assert chats[0].conversation.turns[0].text == "How many nuts has she on day 1?"
    assert notes[0].endswith(f"; ignored: {name} (10)")
    chats, _ = validate_chats(rows(**columns), columns=ColumnConfig(context_column=name))
    shown = as_text(rows(**columns)[1].fields[name])
    assert chats[1].conversation.turns[0].text == f"How many nuts has she on day 2?\n\n{shown}"


@pytest.mark.parametrize("columns", UNNEEDED, ids=lambda columns: next(iter(columns)))
def test_what_no_answer_needs_is_named_and_left_unread(columns: dict) -> None:
    notes: list[str] = []
    chats, _ = validate_chats(rows(**columns), notes=notes)
    assert len(chats) == 10
    assert all(f"{name} (10)" in notes[0].partition("not read: ")[2] for name in columns)


def test_a_column_that_other_rows_use_is_not_refused_where_a_damaged_row_leaves_it_unread() -> None:
    found = rows()
    fields = {
        "text": "She has no nuts, for she gave them to Bob.",
        "answer": "Ann has many nuts, which she took from Bob.",
    }
    chats, _ = validate_chats([*found, *(Record("rows.jsonl", i, fields) for i in range(11, 17))])
    assert len(chats) == 16


def test_a_long_question_holds_its_own_passage() -> None:
    found = rows(
        question="Ann has nuts. " * 40 + "How many on day {}?", comment="This one was written by two people in May."
    )
    assert len(validate_chats(found)[0]) == 10


def test_a_flag_that_ignores_a_column_which_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match=r"has no column 'boddy' \(--ignore_columns\); found: answer, body, question"):
        validate_chats(
            rows(body="Ann has {} nuts and gets one more nut."), columns=ColumnConfig(ignore_columns="boddy")
        )


def test_structures_are_written_as_lines() -> None:
    assert as_text(["a", "b", ""]) == "a\nb"
    assert as_text({"A": "one", "B": "two", "C": None}) == "A: one\nB: two"
    assert as_text(None) == ""
    assert options_of({"text": ["one", "two"], "label": ["A", "B"]}) == {"A": "one", "B": "two"}
    assert options_of(["one", "two"]) == {"0": "one", "1": "two"}
    assert options_of({"a": 1, "b": "x"}) == options_of(["one"]) == options_of("A, B") == {}


def test_a_column_of_true_and_false_that_may_be_a_label_is_named(tmp_path: Path) -> None:
    rows = [{"prompt": f"Add {i}.", "response": "Two.", "is_safe": i % 2 == 0, "toxic": False} for i in range(4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    validate_chats(*read_sets(str(path), "train", None, None).values(), notes=notes)
    assert notes[0].endswith(
        "not read: is_safe (4), toxic (4); if true says that a reply is good: --label_column is_safe"
    )
    columns = ColumnConfig(label_column="is_safe")
    chats, _ = validate_chats(*read_sets(str(path), "train", None, None).values(), columns=columns, notes=notes)
    assert len(chats) == 2
    assert "--label_column" not in notes[1]


def test_another_wording_of_the_question_is_no_passage(tmp_path: Path) -> None:
    question = "Ann has two apples and buys {} more at the shop. How many apples does Ann have now?"
    rows = [
        {
            "query": question.format(i),
            "original_question": f"Ann buys {i} more apples at the shop and has two.",
            "response": "4",
        }
        for i in range(4)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes: list[str] = []
    validate_chats(*read_sets(str(path), "train", None, None).values(), notes=notes)
    assert "not read: original_question (4)" in notes[0]


def test_texts_in_turn_are_a_conversation_that_a_user_begins(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"conversations": ["Hi", "Hello!", "Sure?", "Yes."]}) + "\n")
    [chat], _ = validate_chats(*read_sets(str(path), "train", None, None).values())
    assert [(turn.speaker, turn.text) for turn in chat.conversation.turns] == [
        ("user", "Hi"), ("bot", "Hello!"), ("user", "Sure?"), ("bot", "Yes."),
    ]  # fmt: skip


def test_an_ignored_column_need_not_be_in_every_data_set(tmp_path: Path) -> None:
    sets = []
    for number, more in enumerate(({"body": "Ann has one nut, and she gets one more nut."}, {})):
        rows = [{"prompt": f"How many, {number} {i}?", "response": "Two."} | more for i in range(3)]
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sets += read_sets(str(path), "train", None, None).values()
    chats, _ = validate_chats(*sets, columns=ColumnConfig(ignore_columns="body"))
    assert len(chats) == 6
    with pytest.raises(InputError, match=r"^no data set has a column 'boddy' \(--ignore_columns\); found: body, "):
        validate_chats(*sets, columns=ColumnConfig(ignore_columns="boddy"))
