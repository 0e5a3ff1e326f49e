"""Thumbs out of TRL's unpaired rows, logs and pairs; every row that cannot be used is counted with its reason."""

import json
from pathlib import Path

import pytest

from lmgym.data.records import Record, read_records
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn
from preferences.thumbs import Thumb, validate

ASK = Conversation((Turn("user", "tea?"),))


def read(**fields: object) -> tuple[Thumb, ...]:
    thumbs, rejections = validate([Record("f", 1, fields)])
    assert rejections == []
    return tuple(thumbs)


def rejected(**fields: object) -> str:
    thumbs, [rejection] = validate([Record("f", 1, fields), Record("f", 2, GOOD)])
    assert len(thumbs) == 1
    return f"{rejection.field}: {rejection.found} ({rejection.reason})"


GOOD = {"prompt": "tea?", "completion": "yes.", "label": True}


@pytest.mark.parametrize(
    "fields",
    [
        GOOD,
        {"prompt": [{"role": "user", "content": "tea?"}], "completion": [{"role": "assistant", "content": "yes."}],
         "label": 1},
        {"prompt": "User: tea?\nBot:", "completion": " yes. ", "label": "True"},  # a CSV's
        {"input_text": "User: tea?\nBot:", "output_text": "yes.", "accepted": 1.0, "user_id": "u"},
        {"input_text": "User: tea?\nBot:", "output_text": "yes.", "label": True},
    ],
)  # fmt: skip
def test_a_row_of_any_form_is_a_liked_reply(fields: dict) -> None:
    column = "output_text" if "output_text" in fields else "completion"
    assert read(**fields) == (Thumb(ASK, "yes.", True, "f", 1, column),)


def test_what_was_retried_is_disliked_and_a_pair_is_one_of_each() -> None:
    assert read(input_text="User: tea?\nBot:", output_text="no", accepted=0)[0].liked is False
    assert read(prompt="tea?", chosen="yes.", rejected="no.") == (
        Thumb(ASK, "yes.", True, "f", 1, "chosen"),
        Thumb(ASK, "no.", False, "f", 1, "rejected"),
    )
    assert [thumb.liked for thumb in read(prompt="tea?", replies=["a", "b", "c"], ranks=[2, 1, 3])] == [True, False]


def test_faulty_rows_are_counted_with_their_reasons() -> None:
    assert rejected(prompt="tea?", completion="yes.", label=None) == "label: null (without a value)"
    assert rejected(prompt="tea?", completion="yes.") == "label: missing (without a value)"
    found = "label: 'maybe'; needed: true or false, 1 or 0 (or -1), yes or no, up or down (of the wrong type)"
    assert rejected(prompt="tea?", completion="yes.", label="maybe") == found
    assert rejected(prompt="tea?", completion="yes.", label=[1]).startswith("label: a list of 1 item; needed")
    assert rejected(prompt="tea?", completion="yes.", label=0.5).startswith("label: 0.5; needed")
    assert rejected(prompt="", completion="yes.", label=True) == "prompt: empty (without a prompt)"
    assert rejected(prompt="tea?", completion=" ", label=True) == "completion: an empty reply (without a reply)"
    assert rejected(input_text=None, output_text="a", accepted=1) == "input_text: null (without a prompt)"
    assert rejected(prompt="tea?", chosen="a", rejected="a") == "rejected: identical to chosen (with identical replies)"
    two = [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "b"}]
    assert rejected(prompt="tea?", completion=two, label=True).startswith(
        "completion: turns of user, bot; needed: one turn"
    )


def test_equal_rows_are_several_opinions_and_all_are_used() -> None:
    thumbs, rejections = validate([Record("f", i, {**GOOD, "label": i > 1}) for i in range(1, 4)])
    assert [thumb.liked for thumb in thumbs] == [False, True, True]
    assert not rejections
    assert len({thumb.prompt_key for thumb in thumbs}) == 1


def test_several_data_sets_are_read_and_one_without_thumbs_is_refused(tmp_path: Path) -> None:
    files = []
    for name, rows in (("a", [GOOD] * 2), ("b", [{"input_text": "x", "output_text": "y", "accepted": 0}])):
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    sets = [read_records(str(file)) for file in files]
    assert [thumb.liked for thumb in validate(*sets)[0]] == [True, True, False]
    with pytest.raises(InputError, match="holds no replies with thumbs: found the columns text; needed: prompt, compl"):
        validate(*sets, [Record("c", 1, {"text": "User: a\nBot: b"})])
