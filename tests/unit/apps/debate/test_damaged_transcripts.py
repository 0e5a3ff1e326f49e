"""Transcripts, debates in NYU's shapes and questions with values of other types: each is refused in one line."""

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from nyu_rounds import to_nyu

from lmgym.apps.debate.data import quality, read_questions
from lmgym.apps.debate.formats import FIRST, debate
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.quotes import Quote
from lmgym.apps.debate.tournament.files import read_transcripts
from lmgym.apps.debate.training.rows import sft_rows
from lmgym.apps.debate.transcript import Speech, Transcript, Verdict, to_row
from lmgym.errors import InputError, bounded

SAMPLES = ({"text": "a", "score": 0.5},)
SPEECH = Speech(0, FIRST, "speech", 1, "said", quotes=(Quote("said", "invalid"),), candidates=SAMPLES)
ROUND = Transcript(Question("who?", ("A", "B"), 0), debate(1), speeches=(SPEECH,), verdict=Verdict(0.75, "so"))


def changed(row: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with another value at a path of keys and indices; a value of ... removes it."""
    row = copy.deepcopy(row)
    *places, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    inner: Any = row
    for place in places:
        inner = inner[place]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return row


def refused(error: InputError, *found: str) -> None:
    """One line of a bounded length that says what was found."""
    assert str(error).isprintable()
    assert len(bounded(str(error))) <= 300
    assert all(words in str(error) for words in found), str(error)


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("speeches", "x", "the transcript has speeches='x'; needed: a list"),
        ("speeches.0", ["said"], "a speech is a list of 1 item"),
        ("speeches.0.text", ["said"], "text=a list of 1 item; needed: text"),
        ("speeches.0.slot", 99, "in slot 99; needed"),
        ("speeches.0.slot", "0", "slot='0'; needed: a whole number"),
        ("speeches.0.speaker", "Nobody", "a speech by 'Nobody'"),
        ("speeches.0.kind", "verdict", "a 'verdict' in a slot for a speech"),
        ("speeches.0.quotes", [["said"]], "a quote is a list"),
        ("speeches.0.candidates", [{"text": "a", "score": 7}], "score=7; needed: 0 to 1"),
        ("speeches.0.candidates.0.text", ..., "a candidate has the fields score; needed: text, score"),
        ("speeches.0.opponent_samples", [3], "opponent_samples that are no texts"),
        ("speeches.0.p_first", float("nan"), "p_first=nan"),
        ("verdict.p_first", None, "p_first=None; needed: 0 to 1"),
        ("speeches.0.text", ..., "text"),
        ("flipped", [False], "flipped=a list of 1 item; needed: true or false"),
        ("number", 1.5, "number=1.5"),
        ("players", {FIRST: 3}, "its players has Debater_A=3; needed: text"),
        ("format.slots.0", [[FIRST], "speech", 1], "a slot is a list of 3 items; needed: speakers"),
        ("format.slots.0", 4, "a slot is 4"),
        ("format.slots.0.1", "song", "is a 'song'; needed: speech, "),
        ("format.slots.0.0", [3], "a speaker that is no text"),
        ("format", ..., "no 'format'"),
        ("verdict", [1], "its verdict is a list"),
        ("verdict.p_first", 1.5, "p_first=1.5; needed: 0 to 1"),
        ("text", ["page"], "text=a list of 1 item"),
    ],
)
def test_a_transcript_with_another_type_is_refused_with_its_line(path: str, value: Any, found: str, tmp_path: Path):
    rows = [to_row(ROUND), changed(to_row(ROUND), path, value)]
    (tmp_path / "transcripts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="line 2: ") as error:
        read_transcripts(tmp_path)
    refused(error.value, found)


def test_a_long_key_of_a_transcript_is_not_quoted_whole(tmp_path: Path) -> None:
    row = changed(to_row(ROUND), "speeches.0", {**to_row(ROUND)["speeches"][0], "k" * 5000: 1})
    (tmp_path / "transcripts.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="kkk") as error:
        read_transcripts(tmp_path)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("speeches.0.content", ["said"], "a speech is a list of 1 item; needed: text"),
        ("speeches.0", "said", "TypeError"),
        ("metadata", [1], "branches of a tree of rounds"),
        ("metadata.first_debater_win_prob", 7, "is 7.0; needed: 0 to 1"),
        ("metadata.first_debater_win_prob", "x", "could not convert"),
        ("metadata.question", ..., "KeyError: 'question'"),
    ],
)
def test_a_debate_in_nyus_shape_with_another_type_is_refused(path: str, value: Any, found: str, tmp_path: Path) -> None:
    row = changed(json.loads(json.dumps(to_nyu(ROUND))), path, value)
    file = tmp_path / "rounds.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="line 1: ") as error:
        read_transcripts(file)
    refused(error.value, found, "needed: ")


def test_human_turns_without_probabilities_or_with_odd_ones_are_refused(tmp_path: Path) -> None:
    turn = {"role": "Judge", "text": "so", "probabilities": {"first": 1}}
    row = {"question": "who?", "answers": ["A", "B"], "turns": [turn]}
    (tmp_path / "human.json").write_text(json.dumps([row]))
    with pytest.raises(InputError, match=r"are an object with 1 field; needed: two numbers with the sum 1$"):
        read_transcripts(tmp_path / "human.json")


def test_a_quote_with_a_lone_surrogate_is_looked_up(tmp_path: Path) -> None:
    said = changed(to_nyu(ROUND), "speeches.0.content", "<quote>one two \ud800 three four</quote>")
    said["metadata"]["background_text"] = "one two x three four five"
    (tmp_path / "rounds.jsonl").write_text(json.dumps(said) + "\n")
    assert list(sft_rows(read_transcripts(tmp_path / "rounds.jsonl")))


@pytest.mark.parametrize(
    "change",
    [{"article": 3}, {"article": ["x"]}, {"questions": "x"}, {"questions": [3]}, {"questions": ...}, {"article": None}],
)
def test_stories_of_quality_with_another_type_are_refused_with_their_line(change: dict, tmp_path: Path) -> None:
    question = {"question": "Who?", "options": ["A", "B"], "gold_label": 2, "difficult": 1}
    row = {"article_id": "1", "article": "text", "questions": [question]} | change
    row = {name: value for name, value in row.items() if value is not ...}
    (tmp_path / "stories.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError, match="line 1: ") as error:
        read_questions(tmp_path / "stories.jsonl", quality)
    refused(error.value)


def test_a_file_of_questions_that_is_cut_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n" * 99)[:20])
    with pytest.raises(InputError, match="cannot be read"):
        read_questions(path)
