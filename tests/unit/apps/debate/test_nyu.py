"""Rounds in NYU's two shapes."""

import pytest
from nyu_rounds import to_nyu

from lmgym.apps.debate.formats import FIRST, JUDGE, SECOND
from lmgym.apps.debate.nyu import read_nyu
from lmgym.errors import InputError

LONG = {
    "metadata": {
        "question": "Where?", "background_text": "The cat sat on the mat.", "debate_identifier": "story_1",
        "first_debater_answer": "hat", "second_debater_answer": "mat", "first_debater_correct": False,
        "first_debater_win_prob": 0.25,
    },
    "speeches": [
        {"speaker": "Prompt", "content": "Speak.", "supplemental": None},
        {"speaker": FIRST, "content": "It is <quote>the hat of the cat</quote>", "supplemental": None},
        {"speaker": SECOND, "content": "It is <quote>cat sat on the mat</quote>", "supplemental": None},
        {"speaker": FIRST, "content": "No", "supplemental": None},
        {"speaker": SECOND, "content": "Yes", "supplemental": None},
        {"speaker": JUDGE, "content": "Debater_B | 75%", "supplemental": None},
    ],
}  # fmt: skip
HUMAN = {
    "storyTitle": "Cats", "story": "The cat sat on the mat.", "question": "Where?", "answers": ["mat", "hat"],
    "correctAnswer": "mat",
    "turns": [
        {"role": "Judge", "text": "", "probabilities": [0.5, 0.5]},
        {"role": "Debater", "index": 0, "text": "mat!"},
        {"role": "Debater", "index": 1, "text": "hat!"},
        {"role": "Judge", "text": "why?", "probabilities": [0.6, 0.4]},
        {"role": "Debater", "index": 1, "text": "so"},
        {"role": "Judge", "text": "I see", "probabilities": [0.9, 0.1]},
    ],
}  # fmt: skip


def test_the_longer_shape_is_read_and_written() -> None:
    transcript = read_nyu(LONG)
    assert transcript.correct == SECOND
    assert transcript.verdict.p_first == 0.25
    assert [(s.slot, s.round, s.speaker) for s in transcript.speeches] == [
        (0, 1, FIRST), (0, 1, SECOND), (1, 2, FIRST), (1, 2, SECOND),
    ]  # fmt: skip
    assert [q.status for s in transcript.speeches for q in s.quotes] == ["invalid", "exact"]
    written = to_nyu(transcript)
    assert written["metadata"].items() >= (LONG["metadata"] | {"winner": SECOND}).items()
    assert written["speeches"][1] == LONG["speeches"][2]
    again = read_nyu(written)
    assert (again.question, again.verdict.p_first) == (transcript.question, 0.25)
    assert [s.text for s in again.speeches] == [s.text for s in transcript.speeches]


def test_human_debates_have_slots_as_they_spoke_and_the_judges_last_probability() -> None:
    transcript = read_nyu(HUMAN)
    assert transcript.correct == FIRST
    assert transcript.verdict.p_first == 0.9
    assert [(s.slot, s.kind, s.speaker) for s in transcript.speeches] == [
        (0, "question", JUDGE), (1, "speech", FIRST), (1, "speech", SECOND), (2, "question", JUDGE),
        (3, "speech", SECOND),
    ]  # fmt: skip
    assert read_nyu({k: v for k, v in HUMAN.items() if k != "correctAnswer"}).correct is None


def test_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="has the fields speech; needed: metadata and speeches, or question"):
        read_nyu({"speech": 1})
    with pytest.raises(InputError, match="index=None; needed: 0 or 1"):
        read_nyu(HUMAN | {"turns": [{"role": "Debater", "text": "x"}]})
