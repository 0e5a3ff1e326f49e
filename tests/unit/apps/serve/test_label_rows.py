"""The pairs to label: from what other commands read as pairs, lists, and single replies to one prompt."""

from pathlib import Path
from typing import Any

import pytest
from label_pages import two_sided, write_rows

from lmgym.apps.serve.label_rows import ToLabel, read_label_pairs
from lmgym.config import ColumnConfig
from lmgym.errors import InputError
from lmgym.text import words_of

USUAL = ColumnConfig()
ULTRAFEEDBACK = [{"response": "Hello!", "overall_score": 8}, {"response": "What?", "overall_score": 2}]


def read(folder: Path, *rows: dict[str, Any], columns: ColumnConfig = USUAL, most: int | None = None) -> ToLabel:
    return read_label_pairs(str(write_rows(folder / "rows.jsonl", rows)), columns, most)


def texts(found: ToLabel) -> list[tuple[str, str, str]]:
    return [
        (pair.conversation.turns[-1].text, words_of(pair.first.reply), words_of(pair.second.reply))
        for pair in found.pairs
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?"},
        {"prompt": "Hi", "chosen": "Hello!", "rejected": "What?", "score_chosen": 1.0, "score_rejected": 0.0},
        {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello!", "rejected": "\n\nHuman: Hi\n\nAssistant: What?"},
        {"prompt": "Hi", "response_a": "Hello!", "response_b": "What?"},
        {"prompt": "Hi", "response_a": "Hello!", "response_b": "What?", "winner": "model_a"},
        {"prompt": "Hi", "response_a": "Hello!", "response_b": "What?", "winner": "tie"},
        {"prompt": "Hi", "response_a": "Hello!", "response_b": "What?", "winner": ""},
        {"prompt": "Hi", "response_a": "Hello!", "response_b": "What?", "winner": "no idea"},
        {"instruction": "Hi", "Response A": "Hello!", "Response B": "What?"},
        {"question": "Hi", "answer1": "Hello!", "answer2": "What?", "topic": "greetings"},
        {"prompt": "Hi", "replies": ["Hello!", "What?"], "ranks": [1, 1]},
        {"prompt": "Hi", "replies": ["Hello!", "What?"]},
        {"prompt": "Hi", "model_outputs": [{"text": "Hello!"}, {"text": "What?"}]},
        {"question": "Hi", "responses": ["Hello!", "What?"]},
        {"question": "Hi", "responses": '["Hello!", "What?"]'},
        {"instruction": "Hi", "completions": [{"response": "Hello!", "score": 8}, {"response": "What?", "score": 2}]},
        {"instruction": "Hi", "completions": ULTRAFEEDBACK},
    ],
    ids=str,
)
def test_two_replies_to_a_prompt_are_a_pair_whatever_verdict_they_have(tmp_path: Path, row: dict[str, Any]) -> None:
    assert texts(read(tmp_path, row)) == [("Hi", "Hello!", "What?")]


def test_single_replies_to_one_prompt_are_compared_over_the_files_of_a_run(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    samples.mkdir()
    for update, reply in ((0, "early"), (20, "late"), (40, "early")):
        rows = [{"update": update, "prompt": f"User: q{i}\nBot:", "reply": f"{reply} {i}"} for i in range(3)]
        write_rows(samples / f"evaluation-{update:06d}.jsonl", rows)
        write_rows(samples / f"rollouts-{update:06d}.jsonl", [{"prompt": "User: other\nBot:", "reply": "none"}])
    found = read_label_pairs(str(samples), USUAL)
    assert texts(found) == [(f"q{i}", f"early {i}", f"late {i}") for i in range(3)]
    assert [(Path(p.first.file).stem, p.second.line) for p in found.pairs] == [
        ("evaluation-000000", i) for i in (1, 2, 3)
    ]
    both = f"{samples}/evaluation-000000.jsonl,{samples}/evaluation-000020.jsonl"
    assert texts(read_label_pairs(both, USUAL)) == texts(found)


def test_pairs_of_a_list_connect_all_of_its_replies_and_more_come_from_further_apart(tmp_path: Path) -> None:
    row = {"prompt": "Hi", "replies": [f"reply {i}" for i in range(5)]}
    few, all_of_them = texts(read(tmp_path, row)), texts(read(tmp_path, row, most=100))
    assert len(few) == 4
    assert len(set(all_of_them)) == 10
    assert all_of_them[:4] == few
    assert texts(read(tmp_path, row, most=1)) == few[:1]
    reached, edges = {few[0][1]}, [pair[1:] for pair in few]
    for _ in edges:
        reached |= {end for edge in edges if reached & {*edge} for end in edge}
    assert reached == {*row["replies"]}


def test_ids_are_those_of_the_texts_and_duplicates_are_counted_also_the_other_way_round(tmp_path: Path) -> None:
    pair = {"prompt": "Hi", "response_a": "Hello!", "response_b": "What?"}
    turned = {"prompt": "Hi", "response_a": "What?", "response_b": "Hello!"}
    found, other = read(tmp_path, pair, turned, *two_sided(1)), read(tmp_path, turned)
    assert found.pairs[0].id == other.pairs[0].id != found.pairs[1].id
    assert "1 of 3 rows rejected: 1 duplicate" in found.notes[1]
    assert found.notes[-1] == "2 pairs to label, of 2 prompts"
    assert other.notes[-1] == "1 pair to label, of 1 prompt"


def test_rows_that_cannot_be_compared_are_counted_with_their_reasons(tmp_path: Path) -> None:
    bad = [
        {"prompt": "one", "response_a": "only"},
        {"prompt": "two", "response_a": "same", "response_b": "same "},
        {"prompt": "three", "replies": ["x", "x"]},
        {"prompt": "four", "replies": ["x", 4]},
    ]
    path = write_rows(tmp_path / "rows.jsonl", [*two_sided(2), *bad])
    with path.open("a") as file:
        file.write("not json\n")
    found = read_label_pairs(str(path), USUAL)
    assert len(found.pairs) == 2
    assert "5 of 7 rows rejected" in found.notes[1]
    assert "not JSON" in found.notes[1]
    assert "identical" in found.notes[1]


def test_columns_of_other_names_are_given_by_flags_and_what_is_not_read_is_said(tmp_path: Path) -> None:
    rows = [{"ask": f"q{i}", "human": f"h{i}", "bot": f"b{i}", "by": "x"} for i in range(2)]
    columns = ColumnConfig(prompt_column="ask", chosen_column="human", rejected_column="bot")
    found = read(tmp_path, *rows, columns=columns)
    assert texts(found) == [("q0", "h0", "b0"), ("q1", "h1", "b1")]
    assert "not read: by (2)" in found.notes[0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "is empty: found 0 rows"),
        ([{"prompt": "a", "reply": "b"}], "needed: two, as single ones are not graded"),
        ([{"x": 1}], "holds no replies to compare"),
    ],
)
def test_files_without_two_replies_are_refused_in_one_line(tmp_path: Path, rows: list, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path, *rows)
    assert "\n" not in str(caught.value)
