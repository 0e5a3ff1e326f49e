"""Two replies and what raters said of them, in the forms of labelling tools, arenas and spreadsheets."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmgym.config import ColumnConfig
from lmgym.data.mixing import read_sets
from lmgym.data.pairs import Pair, validate
from lmgym.data.rejections import Rejection
from lmgym.data.verdicts import side_of
from lmgym.errors import InputError
from preferences.thumbs import validate as validate_thumbs

USUAL = ColumnConfig()
GOOD, BAD = "The sum is 5.", "I will not say."


def read(
    folder: Path,
    *rows: dict[str, Any],
    columns: ColumnConfig = USUAL,
    soft: bool = True,
    notes: list[str] | None = None,
) -> tuple[list[Pair], list[Rejection]]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return validate(*read_sets(str(path), "train", None, None).values(), columns=columns, soft=soft, notes=notes)


def said(pairs: list[Pair]) -> list[tuple]:
    return [(pair.chosen, pair.rejected, round(pair.preference, 3)) for pair in pairs]


def row(number: int, first: str = "response_a", second: str = "response_b", **more: Any) -> dict[str, Any]:
    return {"prompt": f"Add {number} and 5.", first: f"{GOOD}{number}", second: f"{BAD}{number}", **more}


@pytest.mark.parametrize(
    ("first", "second", "verdict", "wins", "loses"),
    [
        ("response_a", "response_b", "winner", "model_a", "model_b"),
        ("response_a", "response_b", "preference", "Response A", "Response B"),
        ("Response A", "Response B", "Preferred response", "A", "B"),
        ("answer1", "answer2", "comparison", "left", "right"),
        ("answer1", "answer2", "choice", 1, 2),
        ("reply_0", "reply_1", "better", "reply_0", "reply_1"),
        ("text_left", "text_right", "verdict", "Left is better", "right"),
        ("first_summary", "second_summary", "best_summary", "first", "second"),
        ("translationA", "translationB", "winner", "a", "b"),
        ("response-1", "response-2", "preference.responses", ["response-1"], ["response-2"]),
    ],
)
def test_a_word_that_names_a_reply_by_its_column_or_mark_is_a_verdict(
    tmp_path: Path, first: str, second: str, verdict: str, wins: Any, loses: Any
) -> None:
    if first == "translationA":  # no word parts its mark, so the columns have no rule
        with pytest.raises(InputError, match="holds no pairs"):
            read(tmp_path, row(1, first, second, **{verdict: wins}))
        return
    pairs, rejections = read(
        tmp_path, row(1, first, second, **{verdict: wins}), row(2, first, second, **{verdict: loses})
    )
    assert rejections == []
    assert said(pairs) == [(f"{GOOD}1", f"{BAD}1", 1.0), (f"{BAD}2", f"{GOOD}2", 1.0)]


def test_columns_of_models_and_scores_with_the_same_marks_are_not_the_replies(tmp_path: Path) -> None:
    more = {"model_a": "a-long-name-of-a-model-that-is-longer-than-the-reply", "model_b": "x", "winner": "model_b"}
    pairs, _ = read(tmp_path, row(1, **more))
    assert said(pairs) == [(f"{BAD}1", f"{GOOD}1", 1.0)]


@pytest.mark.parametrize("tie", ["tie", "tie (bothbad)", "both", "Neither", "About the same"])
def test_a_tie_is_a_preference_of_a_half_for_reward_models_and_rejected_elsewhere(tmp_path: Path, tie: str) -> None:
    pairs, rejections = read(tmp_path, row(1, winner=tie), row(2, winner="model_a"))
    assert [pair.preference for pair in pairs] == [0.5, 1.0]
    assert rejections == []
    pairs, [rejection] = read(tmp_path, row(1, winner=tie), row(2, winner="model_a"), soft=False)
    assert len(pairs) == 1
    assert rejection.reason == "tied"


def test_a_pair_whose_status_is_a_tie_is_no_pair_of_a_better_and_a_worse_reply(tmp_path: Path) -> None:
    rows = [{"prompt": "Hi", "chosen": "a", "rejected": "b", "status": status} for status in ("tie", "submitted")]
    rows[1]["prompt"] = "Ho"
    assert [pair.preference for pair in read(tmp_path, *rows)[0]] == [0.5, 1.0]
    assert len(read(tmp_path, *rows, soft=False)[0]) == 1


def test_one_column_a_side_is_one_hot(tmp_path: Path) -> None:
    names = ("winner_model_a", "winner_model_b", "winner_tie")
    rows = [row(i, **{name: int(i == place) for place, name in enumerate(names)}) for i in range(3)]
    pairs, rejections = read(tmp_path, *rows)
    assert said(pairs) == [(f"{GOOD}0", f"{BAD}0", 1), (f"{BAD}1", f"{GOOD}1", 1), (f"{GOOD}2", f"{BAD}2", 0.5)]
    assert rejections == []
    _, [rejection] = read(tmp_path, rows[0], row(4, winner_model_a=1, winner_model_b=1, winner_tie=0))
    assert rejection.found == "winner_model_a 1, winner_model_b 1, winner_tie 0; needed: 1 in one of them"


def test_lists_of_one_text_are_texts_and_of_several_turns_are_rejected_with_the_reason(tmp_path: Path) -> None:
    one = {"prompt": '["Add 1."]', "response_a": '["2"]', "response_b": '["3"]', "winner": "b"}
    two = {"prompt": '["Add 1.", "Sure?"]', "response_a": '["2", "Yes"]', "response_b": '["3", "No"]', "winner": "b"}
    pairs, [rejection] = read(tmp_path, one, two)
    assert (said(pairs), pairs[0].conversation.turns[0].text) == ([("3", "2", 1.0)], "Add 1.")
    assert rejection.found == (
        "2 turns, which part from the other side's at the first; needed: one reply a side to one conversation"
    )


@pytest.mark.parametrize("where", ["a list", "columns", "label studio"])
def test_several_raters_verdicts_are_votes(tmp_path: Path, where: str) -> None:
    def voted(number: int, *votes: str) -> dict[str, Any]:
        if where == "a list":
            return row(number, votes=list(votes))
        if where == "columns":
            return row(number, **{f"rater_{i}": vote for i, vote in enumerate(votes, 1)})
        results = [{"result": [{"type": "pairwise", "value": {"selected": vote}}]} for vote in votes]
        return {"id": number, "annotations": results, "data": row(number)}

    rows = voted(1, "a", "a", "b"), voted(2, "a", "b", "b"), voted(3, "a", "b"), voted(4, "a", "tie")
    pairs, rejections = read(tmp_path, *rows)
    expected = [(f"{GOOD}1", 0.667), (f"{BAD}2", 0.667), (f"{GOOD}3", 0.5), (f"{GOOD}4", 0.75)]
    assert ([(chosen, share) for chosen, _, share in said(pairs)], rejections) == (expected, [])
    for settings in ({"soft": False}, {"columns": ColumnConfig(votes="majority")}):
        pairs, [rejection] = read(tmp_path, *rows, **settings)
        assert said(pairs) == [(f"{GOOD}1", f"{BAD}1", 1), (f"{BAD}2", f"{GOOD}2", 1), (f"{GOOD}4", f"{BAD}4", 1)]
        assert (rejection.line, rejection.reason) == (3, "tied")


@pytest.mark.parametrize("cell", ['["a", "b", "b"]', "['a', 'b', 'b']", "['a' 'b' 'b']"])
def test_a_list_of_votes_in_a_cell_is_read_in_any_notation(tmp_path: Path, cell: str) -> None:
    assert said(read(tmp_path, row(1, votes=cell))[0]) == [(f"{BAD}1", f"{GOOD}1", 0.667)]


@pytest.mark.parametrize(("yes", "no"), [(True, False), ("True", "False"), (1.0, 0.0), ("yes", "no")])
def test_an_outcome_in_a_column_of_its_own_is_read_by_the_table_of_labels(tmp_path: Path, yes: Any, no: Any) -> None:
    rows = [row(1, winner_a=yes, winner_b=no), row(2, winner_a=no, winner_b=yes)]
    assert [pair.chosen for pair in read(tmp_path, *rows)[0]] == [f"{GOOD}1", f"{BAD}2"]


def test_true_and_false_are_verdicts_and_a_number_of_any_size_is_none(tmp_path: Path) -> None:
    columns = ColumnConfig(verdict_column="a_won", first_wins="true")
    pairs, _ = read(tmp_path, row(1, a_won=True), row(2, a_won=False), columns=columns)
    assert [pair.chosen for pair in pairs] == [f"{GOOD}1", f"{BAD}2"]
    odd = {"instruction": "a", "output_1": "b", "output_2": "c"}
    good, [rejection] = read(tmp_path, {**odd, "preference": 10**400}, {**odd, "preference": 1})
    assert (len(good), rejection.line, rejection.field) == (1, 1, "preference")


def test_a_cancelled_annotation_is_no_vote_and_a_task_without_one_is_rejected(tmp_path: Path) -> None:
    cancelled = {"was_cancelled": True, "result": [{"value": {"selected": "right"}}]}
    rows = [{"id": i, "annotations": [cancelled], "data": row(i)} for i in (1, 2)]
    rows[0]["annotations"] = [cancelled, {"result": [{"value": {"choices": ["left"]}}]}]
    pairs, [rejection] = read(tmp_path, *rows)
    assert said(pairs) == [(f"{GOOD}1", f"{BAD}1", 1.0)]
    assert rejection.found.startswith("no selection; needed: a word that names one reply")


def test_a_graded_preference_of_two_outputs_is_the_probability_of_the_second(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"Add {grade}.", "output_1": "one", "output_2": "two", "preference": grade}
        for grade in (1.93, 1.25, 1.0, 2.0, 1.5)
    ]
    chosen = [("two", 0.93), ("one", 0.75), ("one", 1.0), ("two", 1.0), ("one", 0.5)]
    assert [(pair.chosen, round(pair.preference, 3)) for pair in read(tmp_path, *rows)[0]] == chosen


def test_flags_name_two_replies_their_verdict_and_the_one_by_which_the_first_wins(tmp_path: Path) -> None:
    flags = {"chosen_column": "human", "rejected_column": "bot", "verdict_column": "choice"}
    rows = [row(i, "human", "bot", choice=choice) for i, choice in enumerate((0, 1, 0.0, "tie"))]
    pairs, rejections = read(tmp_path, *rows, columns=ColumnConfig(**flags, first_wins="0"))
    assert [(pair.chosen[:3], pair.preference) for pair in pairs] == [("The", 1), ("I w", 1), ("The", 1), ("The", 0.5)]
    assert rejections == []
    with pytest.raises(InputError, match=r"--verdict_column choice holds 0 .*, 1 .*, 2 .*one other verdict and ties"):
        read(tmp_path, *rows, row(9, "human", "bot", choice=2), columns=ColumnConfig(**flags, first_wins="0"))
    with pytest.raises(InputError, match="--first_wins 'A', one other verdict"):  # no row has it
        read(tmp_path, *rows, columns=ColumnConfig(**flags, first_wins="A"))
    with pytest.raises(InputError, match="--first_wins '0' without --verdict_column"):
        read(tmp_path, *rows, columns=ColumnConfig(first_wins="0"))


def test_a_verdict_that_names_a_reply_that_is_not_there_is_rejected_in_its_words(tmp_path: Path) -> None:
    pairs, rejections = read(tmp_path, row(1, winner="a"), row(2, winner="model_c"), row(3, winner=None))
    assert len(pairs) == 1
    assert [(one.line, one.found.partition(";")[0]) for one in rejections] == [
        (2, "'model_c', beside response_a, response_b"),
        (3, "missing, beside response_a, response_b"),
    ]


def test_a_verdict_column_alone_judges_the_two_replies_that_are_found_by_their_names(tmp_path: Path) -> None:
    columns = ColumnConfig(verdict_column="why", first_wins="good")
    pairs, _ = read(tmp_path, row(1, why="good"), row(2, why="poor"), columns=columns)
    assert said(pairs) == [(f"{GOOD}1", f"{BAD}1", 1.0), (f"{BAD}2", f"{GOOD}2", 1.0)]
    with pytest.raises(InputError, match="holds no pairs"):
        read(tmp_path, {"prompt": "a", "completion": "b", "why": "good"}, columns=columns)


def test_a_word_that_names_both_or_none_says_nothing() -> None:
    sides = ("response_a", "response_b")
    for word in ("A over B", "c", "", None, True, 1, 0, "model", "user_1"):
        assert side_of(word, sides) is None, word


def test_the_disliked_side_of_a_pair_below_a_half_is_the_chosen_one(tmp_path: Path) -> None:
    rows = {"prompt": "Hi", "chosen": "a", "rejected": "b", "preference": 0.3, "margin": 2.0}
    [pair], _ = read(tmp_path, rows, soft=False)
    assert (pair.chosen, pair.margin, pair.preference) == ("b", -2.0, 1.0)
    path = tmp_path / "rows.jsonl"
    thumbs, _ = validate_thumbs(*read_sets(str(path), "train", None, None).values())
    assert {(one.reply, one.liked) for one in thumbs} == {("b", True), ("a", False)}


def test_a_verdict_names_a_side_by_another_column_with_its_mark(tmp_path: Path) -> None:
    models = {"model_a": "gpt-4", "model_b": "llama"}
    pairs, rejections = read(
        tmp_path,
        *(row(i, **models, winner=winner) for i, winner in enumerate(("gpt-4", "llama", "tie"))),
        row(4, model_a="x", model_b="x", winner="x"),  # which of both?
    )
    assert said(pairs) == [(f"{GOOD}0", f"{BAD}0", 1), (f"{BAD}1", f"{GOOD}1", 1), (f"{GOOD}2", f"{BAD}2", 0.5)]
    assert [one.line for one in rejections] == [4]


def test_who_judged_is_no_verdict(tmp_path: Path) -> None:
    """As in Label Studio's JSON-MIN, where the annotator has a number, and in MT-bench's judgements."""
    rows = [row(i, "answer1", "answer2", comparison="right", annotator=1, judge="expert_1") for i in range(2)]
    assert said(read(tmp_path, *rows)[0]) == [(f"{BAD}{i}", f"{GOOD}{i}", 1.0) for i in range(2)]
