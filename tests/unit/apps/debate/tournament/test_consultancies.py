"""Single consultancies joined to double ones, and transcripts that do not fit an experiment."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.apps.debate.formats import FIRST, SECOND, consultancy, debate, double_consultancy
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.players.scripted import SCRIPTED
from lmgym.apps.debate.prompts.consultancy import PROMPTS
from lmgym.apps.debate.prompts.debate import PROMPTS as OF_DEBATES
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.tournament.config import Tournament, TournamentConfig
from lmgym.apps.debate.tournament.consultancies import join_consultancies
from lmgym.apps.debate.tournament.files import read_transcripts
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.apps.debate.transcript import Transcript
from lmgym.errors import InputError

CONFIG = TournamentConfig("consultancies")


def setup(config: TournamentConfig) -> Tournament:
    players = {name: SCRIPTED[name] for name in ("quotes", "letters")}
    return Tournament(synthetic_questions(3, facts=4), players, LetterJudge("e"), consultancy(2), PROMPTS)


def doubled(config: TournamentConfig) -> Tournament:
    return replace(setup(config), format=double_consultancy(2))


def debated(config: TournamentConfig) -> Tournament:
    return replace(setup(config), format=debate(2), prompts=OF_DEBATES)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    run_tournament(replace(CONFIG, output=str(tmp_path / "single"), replicates=2), setup)
    return tmp_path / "single"


def said(transcript: Transcript, side: str) -> tuple[str, list[str]]:
    """The answer and the speeches of a side."""
    return transcript.positions[side], [s.text for s in transcript.speeches if s.speaker == side]


def test_two_opposite_consultancies_are_one_double_consultancy_under_one_judge(single: Path, tmp_path: Path) -> None:
    double = tmp_path / "double"
    run_tournament(replace(CONFIG, output=str(double), transcripts=str(single), convert="double"), doubled)
    before, after = read_transcripts(single), read_transcripts(double)
    assert [t.number for t in after] == list(range(len(before) // 2))
    kept = []
    for joined in after:
        assert (joined.format.name, joined.format.isolated) == ("double_consultancy", True)
        assert joined.players[FIRST] == joined.players[SECOND]
        assert [(s.slot, s.speaker) for s in joined.speeches[:4]] == [(0, FIRST), (0, SECOND), (1, FIRST), (1, SECOND)]
        assert joined.verdict.p_first == pytest.approx(LetterJudge("e").p_first([joined.up_to(2)])[0])
        kept += [said(joined, FIRST), said(joined, SECOND)]
    exchanged = [(answer, [text.replace(SECOND, FIRST) for text in texts]) for answer, texts in kept]
    assert sorted(exchanged) == sorted(said(t, FIRST) for t in before)  # nothing is lost, and no answer changes
    assert {t.correct for t in after} == {FIRST, SECOND}


def test_the_kth_consultancies_for_either_answer_are_joined(single: Path) -> None:
    first, *others = read_transcripts(single)
    opposite = next(t for t in others if t.players == first.players and t.flipped != first.flipped)
    said_once = ((first, "a1"), (first, "a2"), (opposite, "b1"), (opposite, "b2"))
    given = [replace(t, speeches=(replace(t.speeches[0], text=text),)) for t, text in said_once]
    assert [[s.text for s in t.speeches] for t in join_consultancies(given)] == [["a1", "b1"], ["a2", "b2"]]


def test_without_convert_consultancies_are_no_double_ones(single: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, output=str(tmp_path / "double"), transcripts=str(single))
    with pytest.raises(InputError, match=r"has 1 debater\(s\), .* double_consultancy, has 2; needed: --convert double"):
        run_tournament(config, doubled)
    assert not (tmp_path / "double").exists()
    run_tournament(replace(CONFIG, output=str(tmp_path / "debates")), debated)
    with pytest.raises(InputError, match=r"has 2 debater\(s\), .* consultancy, has 1; needed: an experiment with"):
        run_tournament(replace(config, transcripts=str(tmp_path / "debates")), setup)
    with pytest.raises(InputError, match="convert=double without transcripts; needed: --transcripts"):
        replace(CONFIG, convert="double")


def test_what_does_not_fit_a_double_consultancy_is_refused(single: Path, tmp_path: Path) -> None:
    first, *others = read_transcripts(single)
    with pytest.raises(InputError, match=r"round 0 has no opposite: nothing by 'quotes' for .*; needed by --convert"):
        join_consultancies([first])
    opposite = next(t for t in others if t.players == first.players and t.flipped != first.flipped)
    with pytest.raises(InputError, match="round 0 has no opposite"):  # another player's is none
        join_consultancies([first, replace(opposite, players={FIRST: "letters"})])
    shorter = replace(opposite, speeches=opposite.speeches[:1])
    with pytest.raises(InputError, match=r"have 2 and 1 speeches about .*: as many"):
        join_consultancies([first, shorter])
    asked = replace(first.speeches[0], kind="question", speaker="Judge")
    with pytest.raises(InputError, match="questions of its judge"):
        join_consultancies([replace(first, speeches=(asked, *first.speeches))])
    run_tournament(replace(CONFIG, output=str(tmp_path / "debates")), debated)
    with pytest.raises(InputError, match="round 0, a debate, has 2 speakers"):
        join_consultancies(read_transcripts(tmp_path / "debates"))


def nyu_consultancy(number: int) -> dict:
    """Consultancies as run_debate writes them with `flip`: the second is by Debater_B, its answer is named first."""
    answers = ["mat", "hat"] if number % 2 == 0 else ["hat", "mat"]
    return {
        "metadata": {
            "question": "Where?", "background_text": "The cat sat on the mat.", "debate_identifier": "Cats_Where?",
            "question_idx": 0, "first_debater_answer": answers[0], "second_debater_answer": answers[1],
            "first_debater_correct": True,
        },
        "speeches": [
            {"speaker": (FIRST, SECOND)[number % 2], "content": f"It is the {answers[0]}.", "supplemental": None},
            {"speaker": "Judge", "content": "Debater_A", "supplemental": {"probabilistic_decision": None}},
        ],
    }  # fmt: skip


def test_consultancies_in_nyus_shape_are_judged_anew_and_joined(tmp_path: Path) -> None:
    (tmp_path / "nyu").mkdir()
    for number in (0, 1):
        (tmp_path / f"nyu/run_{number}_0.json").write_text(json.dumps(nyu_consultancy(number)))
    config = replace(CONFIG, transcripts=str(tmp_path / "nyu"))
    run_tournament(replace(config, output=str(tmp_path / "single")), setup)
    assert [t.correct for t in read_transcripts(tmp_path / "single")] == [FIRST, FIRST]
    run_tournament(replace(config, output=str(tmp_path / "double"), convert="double"), doubled)
    [joined] = read_transcripts(tmp_path / "double")
    assert said(joined, FIRST) == ("mat", ["It is the mat."])
    assert said(joined, SECOND) == ("hat", ["It is the hat."])
    assert joined.correct == FIRST


def test_human_debates_are_judged_anew(tmp_path: Path) -> None:
    turns = [
        {"role": "Debater", "index": 0, "text": "eee"},
        {"role": "Debater", "index": 1, "text": "e"},
        {"role": "Judge", "index": None, "text": "", "probabilities": [0.1, 0.9]},
    ]
    row = {"storyTitle": "Cats", "question": "Where?", "answers": ["mat", "hat"], "turns": turns, "story": "A cat."}
    rows = [row | {"debateId": str(number), "isJudgeCorrect": False} for number in (7, 8)]
    (tmp_path / "human.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = replace(CONFIG, transcripts=str(tmp_path / "human.jsonl"), output=str(tmp_path / "anew"))
    run_tournament(config, debated)
    assert [(t.question.id, t.verdict.p_first, t.correct) for t in read_transcripts(tmp_path / "anew")] == [
        ("Cats_7", 0.75, FIRST), ("Cats_8", 0.75, FIRST),
    ]  # fmt: skip
    run_tournament(config, debated)  # again: nothing is left to judge
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(InputError, match="has no round; needed"):
        run_tournament(replace(config, transcripts=str(tmp_path / "none.jsonl")), debated)
