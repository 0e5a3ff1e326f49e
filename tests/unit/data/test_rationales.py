"""Reasons of raters: the column that holds them, replies that they name by a place, stages that do not read them."""

from pathlib import Path

import pytest

from lmgym.config import RATIONALE, ColumnConfig
from lmgym.data.formats import renamed
from lmgym.data.pairs import validate
from lmgym.data.rationales import chosen_is_first, names_places, rationale_of
from lmgym.data.records import Record
from lmgym.data.rejections import RowError

PLACES = (
    "Response 1 is better", "response_a wins", "I prefer A since it is short", "B is wrong", "The first reply is rude",
    "The former is wrong", "reply (B) fails", "the second is better", "because of the first.", "the one on the left",
    "Model A lies", "A is better",
)  # fmt: skip
NO_PLACES = (
    "the answer a user wants", "A good answer. A clear one, too.", "the first step is wrong", "First, it answers",
    "It uses a model 3 times", "\n\nA good one", "the assistant's reply is right", "two answers in one",
)  # fmt: skip


def row(**fields: object) -> Record:
    return Record("pairs.jsonl", 1, fields)


@pytest.mark.parametrize("text", PLACES)
def test_reasons_that_name_a_reply_by_its_place_are_found(text: str) -> None:
    assert names_places(text)


@pytest.mark.parametrize("text", NO_PLACES)
def test_other_words_are_no_places(text: str) -> None:
    assert not names_places(text)


def test_the_row_says_which_reply_is_first_by_the_names_of_its_columns() -> None:
    two = {"prompt": "q", "response_a": "x", "response_b": "y"}
    assert chosen_is_first(renamed(row(**two, winner="A"))) is True
    assert chosen_is_first(renamed(row(**two, winner="B"))) is False
    assert chosen_is_first(row(prompt="q", chosen="x", rejected="y")) is None
    assert chosen_is_first(renamed(row(prompt="q", chosen_response="x", rejected_response="y"))) is None


def test_reasons_stand_in_one_column_of_a_usual_name_or_in_the_one_that_a_flag_names() -> None:
    assert rationale_of(row(explanation=" It is short. ")) == "It is short."
    with pytest.raises(RowError, match="--rationale_column") as both:
        rationale_of(row(rationale="a", reason="b"))
    assert both.value.field == "reason"
    assert rationale_of(Record("x", 1, {RATIONALE: "a", "reason": "b"})) == "a"
    for fields, found in (({}, "no reasons"), ({"rationale": " "}, "no reasons"), ({"reasons": ["a"]}, "needed: text")):
        with pytest.raises(RowError, match=found):
            rationale_of(row(**fields))


@pytest.mark.parametrize("columns", [ColumnConfig(), ColumnConfig(rationale_column="why")])
def test_pairs_are_read_without_their_reasons_which_no_prompt_needs(columns: ColumnConfig, tmp_path: Path) -> None:
    name = columns.rationale_column or "rationale"
    reasons = "Four is the right sum, and the other reply gives a wrong number."
    rows = [row(prompt=f"What is {i}?", chosen=f"{i}.", rejected="?", **{name: reasons}) for i in range(4)]
    notes: list[str] = []
    pairs, rejections = validate(rows, columns=columns, notes=notes)
    assert (len(pairs), rejections) == (4, [])
    assert notes[0].endswith(f"not read: {name} (4)")
