"""Labels of single replies: their words, columns that hold something else, and what all stages make of them."""

from typing import Any

import pytest

from lmgym.config import ColumnConfig
from lmgym.data.labels import label_of, liked
from lmgym.data.records import Record
from lmgym.data.rejections import RowError, tally
from lmgym.errors import InputError
from preferences.thumbs import validate as validate_thumbs
from sft.conversations import validate_chats

LIKED: list[Any] = [True, 1, 1.0, "1", "1.0", "+1", "true", "True", " YES ", "y", "like", "Liked", "thumbs_up",
                    "Thumbs up", "thumbs-up", "👍", "good", "chosen", "desirable"]  # fmt: skip
DISLIKED: list[Any] = [False, 0, 0.0, -0.0, -1, -1.0, "0", "0.0", "-1", "-1.0", "false", "FALSE", "No", "n", "dislike",
                       "thumbs_down", "thumbs-down", "👎", "bad", "rejected", "undesirable"]  # fmt: skip
OTHERS: list[Any] = [None, "", 0.5, 2, -2, "maybe", "chemistry", [1], {"a": 1}, float("nan"), "1.5", "10", "--1", "-"]


def rows(labels: list[Any], name: str = "label") -> list[Record]:
    """A reply for each label."""
    said = [{"prompt": f"Sum {i}?", "completion": f"It is {i}.", name: label} for i, label in enumerate(labels)]
    return [Record("f.jsonl", i, fields) for i, fields in enumerate(said, 1)]


def test_one_table_says_what_was_liked() -> None:
    assert [liked(value) for value in LIKED] == [True] * len(LIKED)
    assert [liked(value) for value in DISLIKED] == [False] * len(DISLIKED)
    assert [liked(value) for value in OTHERS] == [None] * len(OTHERS)


@pytest.mark.parametrize("name", ["label", "kto_tag"])
def test_sft_leaves_out_just_what_kto_dislikes(name: str) -> None:
    labels = [label for both in zip(LIKED, DISLIKED, strict=False) for label in both]
    labels = [label for label in labels if not str(label).startswith("-1")]
    thumbs, faults = validate_thumbs(rows(labels, name))
    assert not faults
    chats, rejections = validate_chats(rows(labels, name))
    assert [chat.line for chat in chats] == [thumb.line for thumb in thumbs if thumb.liked]
    assert [one.line for one in rejections] == [thumb.line for thumb in thumbs if not thumb.liked]
    assert {one.reason for one in rejections} == {"with a label that is false"}
    assert rejections[0].found.endswith("which says that the reply was disliked; needed: a reply to learn from")
    counted = tally(rejections, len(labels))  # they are no sign of bad data
    assert (counted.total, "with a label that is false" in counted.line) == (0, True)


def test_a_topic_that_is_called_label_is_not_read_and_says_so() -> None:
    notes: list[str] = []
    chats, rejections = validate_chats(rows(["chemistry", "physics", "art"]), notes=notes)
    assert (len(chats), rejections) == (3, [])
    assert notes[0].endswith("; not read: label (3)")
    with pytest.raises(InputError, match=r"--label_column topic holds no labels: found 'chemistry', 'art'; needed: tr"):
        validate_chats(rows(["chemistry", "art"], "topic"), columns=ColumnConfig(label_column="topic"))


def test_labels_beside_other_values_are_refused_by_every_stage_and_a_stray_one_is_a_bad_row() -> None:
    for validate in (validate_chats, validate_thumbs):
        with pytest.raises(InputError, match=r"label holds 3 labels and 3 other values \('maybe', 3\); needed: true"):
            validate(rows([1, 0, "yes", "maybe", 3, "maybe"]))
        used, rejections = validate(rows([1] * 20 + ["maybe"]))
        assert len(used) == 20
        assert [(one.line, one.field, one.reason) for one in rejections] == [(21, "label", "of the wrong type")]


def test_minus_one_beside_zero_is_refused_since_zero_may_be_undecided() -> None:
    assert [thumb.liked for thumb in validate_thumbs(rows([-1, 1, "-1", 1.0]))[0]] == [False, True, False, True]
    for validate in (validate_chats, validate_thumbs):
        with pytest.raises(InputError, match=r"holds -1 \(1 rows\) and 0 \(2 rows\), of which 0 may mean disliked or"):
            validate(rows([-1, 0, 1, "0.0"]))


def test_two_columns_must_agree() -> None:
    assert label_of({"label": 1, "kto_tag": "yes"}) == ("label", True)
    assert label_of({"label": None, "kto_tag": ""}) is None
    with pytest.raises(RowError, match="label true and kto_tag false; needed: columns that agree"):
        label_of({"label": 1, "kto_tag": 0})
