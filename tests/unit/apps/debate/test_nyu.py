"""Rounds in NYU's two shapes."""

import json
from pathlib import Path

import pytest
from nyu_rounds import to_nyu

from lmgym.apps.debate.formats import FIRST, JUDGE, SECOND
from lmgym.apps.debate.nyu import read_nyu
from lmgym.apps.debate.tournament.files import questions_of, read_transcripts
from lmgym.apps.debate.tournament.results import tournament_results
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


def judge(text: str, probabilities: object, role: str = "Judge") -> dict:
    """A judge's turn as the platform of the human debates writes it."""
    return {"role": role, "index": None, "text": text, "probabilities": probabilities}


def speech(index: int, text: str, role: str = "Debater") -> dict:
    return {"role": role, "index": index, "text": text, "probabilities": None}


def test_human_debates_have_slots_as_they_spoke_and_the_judges_last_probability() -> None:
    transcript = read_nyu(HUMAN)
    assert transcript.correct == FIRST
    assert (transcript.verdict.p_first, transcript.verdict.text) == (0.9, "I see")
    assert [(s.slot, s.kind, s.speaker) for s in transcript.speeches] == [
        (0, "speech", FIRST), (0, "speech", SECOND), (1, "question", JUDGE), (2, "speech", SECOND),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "is_judge_correct", "correct"),
    [
        ([0.9, 0.1], True, FIRST),
        ([0.9, 0.1], False, SECOND),
        ([0.2, 0.8], True, SECOND),
        ([0.2, 0.8], False, FIRST),
        ([0.5, 0.5], False, None),  # the platform calls a judge right above .5 alone
        ([0.9, 0.1], None, None),
        (None, True, FIRST),  # the last turn has none: those of the turn before it, [.6, .4], count
    ],
)
def test_the_right_answer_of_a_human_debate_follows_from_its_judge(
    last: list | None, is_judge_correct: bool | None, correct: str | None
) -> None:
    row = {key: value for key, value in HUMAN.items() if key != "correctAnswer"}
    row |= {"isJudgeCorrect": is_judge_correct, "turns": [*HUMAN["turns"][:-1], judge("so", last)]}
    assert read_nyu(row).correct == correct
    assert read_nyu(row | {"correctAnswer": "hat"}).correct == SECOND  # what is named counts


def test_without_probabilities_a_human_debate_has_no_verdict_and_no_right_answer() -> None:
    turns = [speech(0, "mat!"), speech(1, "hat!"), judge("It must be the mat of Debater_A or Debater_B.", None)]
    row = {key: value for key, value in HUMAN.items() if key != "correctAnswer"} | {"turns": turns}
    found = read_nyu(row | {"isJudgeCorrect": True})
    assert (found.correct, found.verdict) == (None, None)
    assert [s.kind for s in found.speeches] == ["speech", "speech"]


def test_turns_without_text_are_left_out_and_still_part_what_was_said_before_and_after() -> None:
    turns = [judge("", [0.5, 0.5]), speech(0, "mat!"), judge(" ", [0.6, 0.4]), speech(1, "hat!"), speech(0, "")]
    offline = judge("", [0.7, 0.3], "Offline Judge (Stepped)")
    found = read_nyu(HUMAN | {"turns": [*turns, offline]})
    assert [(s.slot, s.speaker, s.text) for s in found.speeches] == [(0, FIRST, "mat!"), (1, SECOND, "hat!")]
    assert [s.text for s in found.heard_by(SECOND, 1)] == ["mat!"]
    assert (found.verdict.p_first, found.verdict.text) == (0.7, "Debater_A | 70.0%")


def test_debates_about_one_question_have_ids_of_their_own_and_one_question_in_figures() -> None:
    first, second, unnumbered = (read_nyu(HUMAN | {"debateId": number}) for number in ("17", "-42", "-1"))
    assert [t.question.id for t in (first, second, unnumbered)] == ["Cats_17", "Cats_-42", "Cats_Where?"]
    assert first.question.key == second.question.key != read_nyu(HUMAN | {"question": "Who?"}).question.key
    assert tournament_results([first, second])["questions"] == 1


def test_a_debater_of_another_role_is_known_by_its_index() -> None:
    found = read_nyu(HUMAN | {"turns": [speech(1, "hat!", "GPT-4"), judge("", [0.1, 0.9])]})
    assert [s.speaker for s in found.speeches] == [SECOND]


def flipped_consultancy(**metadata: object) -> dict:
    """As run_debate writes it: Debater_B alone speaks, and its answer is the first debater's in the metadata."""
    speeches = [
        {"speaker": "Prompt", "content": 'Debater_B will instead defend the position that the answer is "hat".'},
        {"speaker": SECOND, "content": "hat!"},
        {"speaker": JUDGE, "content": "", "supplemental": {"probabilistic_decision": {FIRST: 0.3, SECOND: 0.7}}},
    ]
    known = {key: value for key, value in LONG["metadata"].items() if key != "first_debater_win_prob"}
    return {"metadata": known | metadata, "speeches": speeches}


def test_a_flipped_consultancy_is_for_the_answer_that_its_prompt_says() -> None:
    played = read_nyu(flipped_consultancy())
    again = {"first_debater_answer": "mat", "second_debater_answer": "hat"}  # judged offline: the answers are as named
    for found in (played, read_nyu(flipped_consultancy(**again))):
        assert found.positions == {FIRST: "mat", SECOND: "hat"}
        assert found.correct == SECOND
        assert found.verdict.p_first == 0.3
    decided = flipped_consultancy()
    decided["speeches"][-1]["supplemental"] = {"probabilistic_decision": None, "decision": SECOND}
    assert read_nyu(decided).verdict.p_first == 0.0
    unsaid = flipped_consultancy()
    del unsaid["speeches"][0]
    assert read_nyu(unsaid).positions[SECOND] == "hat"


def test_samples_of_a_best_of_n_debater_are_candidates() -> None:
    rejected = [{"speech": "worse", "preference": 0.2}]
    said = {
        "speaker": FIRST, "content": "<invalid_quote>best of all texts</invalid_quote>",
        "supplemental": {"speech": "best", "preference": 0.8, "rejected_responses": rejected},
    }  # fmt: skip
    [found] = read_nyu(LONG | {"speeches": [said]}).speeches
    assert found.candidates == (
        {"text": "<quote>best of all texts</quote>", "score": 0.8}, {"text": "worse", "score": 0.2},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"speech": 1}, "has the fields speech; needed: metadata and speeches, or question"),
        (HUMAN | {"turns": [{"role": "Debater", "text": "x"}]}, "turn of 'Debater' has index=None; needed: 0 or 1"),
        (HUMAN | {"turns": [speech(3, "x", "Consultant")]}, "turn of 'Consultant' has index=3; needed: 0 or 1"),
        (HUMAN | {"turns": [judge("", [90, 10])]}, "a judge's probability is 90; needed: 0 to 1"),
        (HUMAN | {"turns": [judge("", [0.9, 0.9])]}, "needed: two numbers with the sum 1"),
        (HUMAN | {"correctAnswer": "cat"}, "correct='cat'; needed: 0, 1 or none"),
        ({k: v for k, v in HUMAN.items() if k != "correctAnswer"} | {"isJudgeCorrect": "yes"}, "needed: true, false"),
        (LONG | {"metadata": [LONG["metadata"]]}, "branches of a tree of rounds, which are no round"),
    ],
)
def test_other_shapes_are_refused(row: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_nyu(row)


def test_a_runs_files_are_read_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    for name in ("2024-03-11_16:29:23_0_0", "2024-03-11_16:29:23_10_0", "2024-03-11_16:29:23_2_0", "2024-03-12_0_0"):
        metadata = LONG["metadata"] | {"debate_identifier": name}
        (tmp_path / f"{name}.json").write_text(json.dumps(LONG | {"metadata": metadata}))
    found = read_transcripts(tmp_path / "2024-03-11_16:29:23")
    assert [t.question.id.rpartition("23_")[2] for t in found] == ["0_0", "2_0", "10_0"]
    assert [t.number for t in found] == [0, 1, 2]
    assert len(read_transcripts(tmp_path)) == 4
    assert len(questions_of(found)) == 1  # one question of one text, whatever the debates are called
    with pytest.raises(InputError, match="has no transcripts"):
        read_transcripts(tmp_path / "2024-03-1")
