"""Raters' votes in the forms in which people have them: one meaning, whatever the form."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lmgym.apps.audit.agree.agreement import arrays, central_levels
from lmgym.apps.audit.agree.forms import Named
from lmgym.apps.audit.agree.judging import by_shares, signs
from lmgym.apps.audit.agree.labels import Labels, Reading, read_labels
from lmgym.apps.audit.agree.levels import Levels, levels_of
from lmgym.config import ColumnConfig
from lmgym.data.mixing import read_sets
from lmgym.data.pairs import validate
from lmgym.errors import InputError

VOTES = {
    0: {"kim": "first", "lee": "second", "ann": "tie"},
    1: {"kim": "second", "lee": "second", "ann": "second"},
    2: {"kim": "first", "lee": "first", "ann": "second"},
}
SIDES = {"first": "a", "second": "b", "tie": "tie"}


def write(rows: list[dict[str, Any]], name: str = "labels.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def write_csv(rows: list[dict[str, Any]], name: str = "labels.csv") -> str:
    with Path(name).open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return name


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pair(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Question {number}?", "answer_a": f"Yes {number}.", "answer_b": f"No {number}.", **more}


def said(labels: Labels) -> dict[str, dict[str, str]]:
    """{first reply: {rater: vote}}."""
    found: dict[str, dict[str, str]] = {row.replies[0]: {} for row in labels.rows}
    for rating in labels.ratings:
        found[labels.rows[rating.row].replies[0]][rating.rater] = labels.levels.names[rating.level]
    return found


WANTED = {f"Yes {number}.": votes for number, votes in VOTES.items()}


def rows_in(form: str) -> list[dict[str, Any]]:
    rows = []
    for number, votes in VOTES.items():
        words = {rater: SIDES[vote] for rater, vote in votes.items()}
        if form == "columns":
            rows.append(pair(number, **{f"annotator_{rater}": word for rater, word in words.items()}))
        elif form == "object":
            rows.append(pair(number, votes=words))
        elif form == "object in text":
            rows.append(pair(number, votes=json.dumps(words)))
        elif form == "objects":
            rows.append(pair(number, votes=[{"annotator": r, "vote": word} for r, word in words.items()]))
        elif form == "lists":
            rows.append(pair(number, votes=list(words.values()), raters=list(words)))
        elif form == "a rating a row":
            rows += [pair(number, worker_id=rater, preference=word) for rater, word in words.items()]
        elif form == "label studio":
            marks = {"a": "left", "b": "right", "tie": "tie"}
            done = [
                {"completed_by": {"email": r}, "result": [{"value": {"selected": marks[word]}}]}
                for r, word in words.items()
            ]
            rows.append({"data": pair(number), "annotations": done})
    return rows


FORMS = ("columns", "object", "object in text", "objects", "lists", "a rating a row", "label studio")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_votes_on_two_replies_is_read_alike(form: str) -> None:
    labels = read_labels(write(rows_in(form)), Reading())
    found = {
        reply: {rater.removeprefix("annotator_"): vote for rater, vote in votes.items()}
        for reply, votes in said(labels).items()
    }
    assert found == WANTED
    assert labels.are_pairs
    assert labels.has_raters
    assert not labels.left_out
    assert labels.notes[0].startswith("labels.jsonl: one row ")


@pytest.mark.parametrize("form", ["columns", "object", "objects", "lists", "label studio"])
def test_votes_are_those_of_which_training_makes_a_preference(form: str) -> None:
    rows = rows_in(form)
    if form == "columns":  # training reads those that end in a number
        numbers = {f"annotator_{rater}": f"annotator_{i}" for i, rater in enumerate(VOTES[0], 1)}
        rows = [{numbers.get(name, name): value for name, value in row.items()} for row in rows]
    source = write(rows)
    labels = read_labels(source, Reading())
    pairs, rejections = validate(*read_sets(source, "train", None, None).values(), soft=True)
    assert not rejections
    preferences = {frozenset((one.chosen, one.rejected)): (one.chosen, one.preference) for one in pairs}
    for number, row in enumerate(labels.rows):
        levels = [rating.level for rating in labels.ratings if rating.row == number]
        share = sum({0: 1.0, 1: 0.5, 2: 0.0}[level] for level in levels) / len(levels)
        chosen, preference = preferences[frozenset(row.replies)]
        assert preference == pytest.approx(share if chosen == row.replies[0] else 1 - share)


def test_sides_that_were_shown_the_other_way_round_turn_the_votes_and_not_what_was_shown_first() -> None:
    rows = [pair(0, rater="kim", winner="a"), pair(0, rater="lee", winner="a")]
    rows[1]["answer_a"], rows[1]["answer_b"] = rows[1]["answer_b"], rows[1]["answer_a"]
    labels = read_labels(write(rows), Reading())
    assert said(labels) == {"Yes 0.": {"kim": "first", "lee": "second"}}
    assert [rating.shown_first for rating in labels.ratings] == [True, True]


def test_what_is_no_vote_is_counted_with_its_reason() -> None:
    rows = [
        pair(0, rater_1="a", rater_2="cannot say", rater_3=None),
        pair(1, rater_1="Can't tell", rater_2="purple", rater_3="b"),
        pair(2, rater_1=None, rater_2="?", rater_3=""),
    ]
    labels = read_labels(write(rows), Reading())
    assert said(labels) == {"Yes 0.": {"rater_1": "first"}, "Yes 1.": {"rater_3": "second"}}
    assert labels.reasons == {"cannot say": 3, "that name no level, such as 'purple'": 1}
    assert labels.notes[-1] == "1 rows without a vote are not judged"


def test_votes_of_which_many_name_no_level_are_refused_since_the_others_may_mean_something_else() -> None:
    rows = [
        {"prompt": f"q{i}", "response_1": f"a{i}", "response_2": f"b{i}", "rater": "kim", "preference": 1 + i % 5}
        for i in range(10)
    ]
    with pytest.raises(
        InputError, match=r"4 votes that can be read \(6 that name no level, such as 3\); .*--first_wins"
    ):
        read_labels(write(rows), Reading())


def test_training_reads_the_votes_beside_one_who_cannot_say() -> None:
    source = write([pair(0, votes=["a", "b", "a", "cannot say"])])
    pairs, rejections = validate(*read_sets(source, "train", None, None).values(), soft=True)
    assert not rejections
    assert pairs[0].preference == pytest.approx(2 / 3)


def test_a_second_vote_of_a_rater_is_counted_and_not_used() -> None:
    rows = [pair(0, rater="kim", winner="a"), pair(0, rater="kim", winner="b")]
    labels = read_labels(write(rows), Reading())
    assert said(labels) == {"Yes 0.": {"kim": "first"}}
    assert labels.left_out == {"second ones of a rater on a row": 1}


def test_counts_by_vote_are_votes_without_raters() -> None:
    labels = read_labels(write([pair(0, votes={"a": 3, "b": 1, "tie": 2}), pair(1, votes={"a": 0, "b": 4})]), Reading())
    assert Counter((rating.row, rating.level) for rating in labels.ratings) == {
        (0, 0): 3, (0, 2): 1, (0, 1): 2, (1, 2): 4,
    }  # fmt: skip
    assert not labels.has_raters


def test_places_in_lists_of_one_length_are_raters_and_a_missing_vote_keeps_the_others_places() -> None:
    rows = [pair(number, votes=["a", None if number else "b", "b"]) for number in range(3)]
    labels = read_labels(write(rows), Reading())
    assert said(labels)["Yes 1."] == {"vote 1": "first", "vote 3": "second"}
    assert not read_labels(write([pair(0, votes=["a", "b"]), pair(1, votes=["a"])]), Reading()).has_raters


def reply(number: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Question {number}?", "completion": f"Yes {number}.", **more}


@pytest.mark.parametrize("form", ["a rating a row", "columns", "list", "list in a table"])
def test_every_form_of_grades_of_single_replies_is_read_alike(form: str) -> None:
    grades = {0: {"kim": 1, "lee": 2}, 1: {"kim": 4, "lee": 4}}
    rows = []
    for number, own in grades.items():
        if form == "a rating a row":
            rows += [reply(number, annotator=rater, rating=grade) for rater, grade in own.items()]
        elif form == "columns":
            rows.append(reply(number, **{f"rater_{rater}": grade for rater, grade in own.items()}))
        else:
            rows.append(reply(number, ratings=list(own.values()), raters=list(own)))
    source = write_csv(rows) if form == "list in a table" else write(rows)
    labels = read_labels(source, Reading())
    assert not labels.are_pairs
    assert labels.levels == Levels(("1", "2", "4"), (1.0, 2.0, 4.0), are_ordered=True, are_numbers=True)
    found = {
        reply: {r.removeprefix("rater_"): vote for r, vote in votes.items()} for reply, votes in said(labels).items()
    }
    assert found == {"Yes 0.": {"kim": "1", "lee": "2"}, "Yes 1.": {"kim": "4", "lee": "4"}}


def test_labels_and_texts_may_be_in_two_files_and_labels_of_rows_that_are_not_there_are_counted() -> None:
    texts = write([pair(number, uid=f"q{number}") for number in range(3)], "rows.jsonl")
    votes = [
        {"rater": r, "item": f"q{number}", "vote": SIDES[vote]}
        for number, own in VOTES.items()
        for r, vote in own.items()
    ]
    votes.append({"rater": "kim", "item": "q99", "vote": "a"})
    labels = read_labels(write(votes), Reading(rows=texts))
    assert said(labels) == WANTED
    assert labels.left_out == {"of rows that are not there": 1}
    assert "texts of rows.jsonl by item, there uid" in labels.notes
    for vote in votes:
        vote["item"] = "x" + vote["item"]
    with pytest.raises(
        InputError, match=r"no label of labels.jsonl has its row in rows.jsonl: .*needed: --item_column"
    ):
        read_labels(write(votes), Reading(rows=texts))


def test_flags_name_columns_and_what_a_verdict_means() -> None:
    rows = [pair(number, who=rater, says=1 - number % 2) for number in range(3) for rater in ("kim", "lee")]
    reading = Reading(Named("says", "who"), columns=ColumnConfig(first_wins="1"))
    assert said(read_labels(write(rows), reading))["Yes 0."] == {"kim": "first", "lee": "first"}
    wide = [reply(number, kim=number, lee=2) for number in range(3)]
    labels = read_labels(write(wide), Reading(Named(raters=("kim", "lee"))))
    assert said(labels)["Yes 1."] == {"kim": "1", "lee": "2"}
    with pytest.raises(InputError, match="the labels have no column 'bob'"):
        read_labels(write(wide), Reading(Named(raters=("kim", "bob"))))


def test_columns_of_criteria_are_not_taken_for_raters() -> None:
    rows = [reply(number, score_helpful=number, score_honest=2) for number in range(3)]
    with pytest.raises(InputError, match=r"score_helpful, score_honest may all be votes.*--rater_columns"):
        read_labels(write(rows), Reading())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "is empty"),
        (["no object"], "has no row that can be read; the first: labels.jsonl, line 1"),
        (
            [pair(0, **{"preference.responses": ["answer_a"], "preference.responses.users": ["u1"]})],
            "the columns preference.responses, preference.responses.users may all be votes",
        ),
        ([{"prompt": "Hi", "answer_a": "a1", "answer_b": "b1"}], "no column is called as votes or grades are"),
        (
            [pair(0, winner="purple", rater="kim")],
            "has no votes to compare with .1 that name no level, such as 'purple'",
        ),
        ([pair(0, votes=["a", "b"], raters=["kim"])], "1 raters for 2 votes; needed: as many"),
        ([{"winner": "a", "rater": "kim", "item": 3}], "needed: two replies, such as answer_a and answer_b"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_labels(write(rows), Reading())
    assert "\n" not in str(error.value)


def test_an_absent_file_is_one_line() -> None:
    with pytest.raises(InputError, match=r"there is no file none.jsonl"):
        read_labels("none.jsonl", Reading())


def test_levels_are_numbers_dislikes_before_likes_or_as_given() -> None:
    assert levels_of(["10", 2, 2.0]).names == ("2", "10")
    assert levels_of(["good", "bad", "good"]).names == ("bad", "good")
    assert not levels_of(["O", "T", "X"]).are_ordered
    assert levels_of(["O", "T", "X"], ("X", "T", "O")).place("t") == 1
    assert levels_of(["3", 4, 5] * 20 + ["later"]).names == ("3", "4", "5")
    with pytest.raises(InputError, match="the labels have 300 values"):
        levels_of(range(300))


def test_the_middle_of_a_row_is_its_majority_or_of_grades_its_median() -> None:
    rows = [pair(0, votes=["a", "a", "b"]), pair(1, votes=["a", "b", "tie"]), pair(2, votes=["b", "b", "tie"])]
    labels = read_labels(write(rows), Reading())
    assert central_levels(arrays(labels).counts, labels).tolist() == [0, -1, 2]
    grades = [reply(0, ratings=[1, 1, 5]), reply(1, ratings=[1, 3, 5]), reply(2, ratings=[3, 3, 5, 5])]
    labels = read_labels(write(grades), Reading())
    assert central_levels(arrays(labels).counts, labels).tolist() == [0, 1, -1]


def test_scores_become_verdicts_by_signs_and_grades_by_shares() -> None:
    import numpy as np

    assert signs(np.array([2.0, 0.0, -0.1, -2.0]), 0.0).tolist() == [0, 1, 2, 2]
    assert signs(np.array([2.0, 0.0, -0.1, -2.0]), 0.5).tolist() == [0, 1, 1, 2]
    assert by_shares(np.array([5.0, 1.0, 3.0, 2.0]), np.array([0.25, 0.5, 0.25])).tolist() == [2, 0, 1, 1]
    assert by_shares(np.array([1.0, 1.0, 1.0, 1.0]), np.array([0.25, 0.5, 0.25])).tolist() == [1, 1, 1, 1]
