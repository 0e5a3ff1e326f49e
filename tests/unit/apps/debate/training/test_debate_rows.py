"""Rows for training: what was read and said, losers of the best of n, and that both stages read them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, SECOND, debate
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.tournament.files import append, read_transcripts
from lmgym.apps.debate.training.command import data
from lmgym.apps.debate.training.preferences import PREFERENCES
from lmgym.apps.debate.training.rows import preference_rows, read_prompt_file, sft_rows
from lmgym.apps.debate.transcript import Transcript, Verdict
from lmgym.data.pairs import validate
from lmgym.data.records import read_records
from lmgym.errors import InputError

TASK = {
    "question": "Where is the cat?", "options": ["on the mat", "in the hat"], "correct": 0,
    "text": "All day the cat sat on the mat.", "flipped": False,
}  # fmt: skip
LIE = "<quote>The cat sat in the hat all day</quote> as I say"


@pytest.fixture
def played() -> Transcript:
    """Two rounds, in which Debater_B lies in its first speech and Debater_A chose its second one of three."""
    round = Debate(debate(2), PROMPTS)
    round.reset(TASK, 0)
    round.step({FIRST: "alpha-1", SECOND: LIE})
    round.step({FIRST: "alpha-2", SECOND: "beta-2"})
    samples = ({"text": " alpha-2", "score": 0.8}, {"text": "weak", "score": 0.4}, {"text": "equal", "score": 0.8})
    speeches = [replace(s, candidates=samples) if s.text == "alpha-2" else s for s in round.transcript.speeches]
    return replace(round.transcript, speeches=tuple(speeches), verdict=Verdict(0.3))


def test_a_speech_stands_behind_what_its_speaker_had_read(played: Transcript) -> None:
    rows = list(sft_rows([played]))
    assert [row["completion"] for row in rows] == ["alpha-1", LIE, "alpha-2", "beta-2"]
    first, second = rows[0]["prompt"], rows[2]["prompt"]
    assert [m["role"] for m in first] == ["system", "user"]
    assert [m["role"] for m in second] == ["system", "user", "assistant", "user"]
    assert second[2]["content"] == "alpha-1"
    assert "<invalid_quote>The cat sat in the hat" in second[3]["content"]  # heard as it was checked
    assert "alpha-1" not in rows[1]["prompt"][1]["content"]  # speeches of one slot


def test_only_the_right_side_or_the_winner_is_learned(played: Transcript) -> None:
    assert [row["completion"] for row in sft_rows([played], speakers="right")] == ["alpha-1", "alpha-2"]
    assert [row["completion"] for row in sft_rows([played], speakers="won")] == [LIE, "beta-2"]
    assert not list(sft_rows([replace(played, verdict=None)], speakers="won"))


def test_losers_of_the_best_of_n_are_rejected_and_ties_are_none(played: Transcript) -> None:
    [row] = preference_rows([played], PREFERENCES["logit"])
    assert (row["chosen"], row["rejected"]) == ("alpha-2", "weak")
    assert row["preference"] == pytest.approx(6 / 7)
    assert row["prompt"] == list(sft_rows([played]))[2]["prompt"]


def test_the_command_writes_rows_that_dpo_reads(played: Transcript, tmp_path: Path) -> None:
    append(tmp_path / "transcripts.jsonl", [played])
    output = tmp_path / "new/pairs.jsonl"
    done = CliRunner().invoke(data, [str(tmp_path), "--kind", "preferences", "--output", str(output)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("1 rows of 1 rounds")
    [pair], rejections = validate(read_records(str(output)), soft=True)
    assert not rejections
    assert (pair.chosen, pair.rejected) == ("alpha-2", "weak")
    assert pair.preference == pytest.approx(0.8**2.25 / (0.8**2.25 + 0.4**2.25))
    assert [turn.speaker for turn in pair.conversation.turns] == ["user", "bot", "user"]


def test_a_judge_learns_the_right_answers_name_behind_what_it_reads(played: Transcript, tmp_path: Path) -> None:
    unknown = replace(played, number=1, question=replace(played.question, correct=None))
    append(tmp_path / "transcripts.jsonl", [played, unknown, replace(played, number=2, flipped=True)])
    output = tmp_path / "rows.jsonl"
    done = CliRunner().invoke(data, [str(tmp_path), "--kind", "judge", "--output", str(output)])
    assert "1 of 3 rounds have no known right answer" in done.output
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["completion"] for row in rows] == ["Debater_A", "Debater_B"]
    asked = rows[0]["prompt"][-1]["content"]
    assert "beta-2" in asked
    assert asked.index("alpha-1") < asked.index("Who has the right answer?")
    assert TASK["text"] not in str(rows[0]["prompt"])


def test_rounds_without_losers_give_no_pairs(played: Transcript, tmp_path: Path) -> None:
    plain = replace(played, speeches=tuple(replace(s, candidates=()) for s in played.speeches))
    append(tmp_path / "transcripts.jsonl", [plain])
    done = CliRunner().invoke(data, [str(tmp_path), "--kind", "preferences", "--output", str(tmp_path / "p.jsonl")])
    assert done.exit_code == 2


def test_human_debates_in_the_other_shape_are_read(tmp_path: Path) -> None:
    row = {
        "question": "Where is the cat?", "answers": ["on the mat", "in the hat"], "correctAnswer": "on the mat",
        "story": TASK["text"],
        "turns": [
            {"role": "Debater", "index": 0, "text": "It sat <quote>on the mat</quote>"},
            {"role": "Debater", "index": 1, "text": "No."},
            {"role": "Judge", "text": "fine", "probabilities": [0.9, 0.1]},
        ],
    }  # fmt: skip
    (tmp_path / "human.jsonl").write_text(json.dumps(row) + "\n")
    for number in (10, 2):
        (tmp_path / f"run_{number}_0.json").write_text(json.dumps(row | {"question": f"Where is cat {number}?"}))
    [human], read = read_transcripts(tmp_path / "human.jsonl"), read_transcripts(tmp_path)
    assert [t.question.question for t in read] == ["Where is the cat?", "Where is cat 2?", "Where is cat 10?"]
    assert [t.number for t in read] == [0, 1, 2]
    assert human.speeches == read[0].speeches
    [said] = sft_rows([human], speakers="won")
    assert said["completion"] == "It sat <quote>on the mat</quote>"
    (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n{}\n")
    with pytest.raises(InputError, match=r"bad.jsonl, line 2: a transcript has the fields"):
        read_transcripts(tmp_path / "bad.jsonl")


def test_rounds_without_a_known_right_answer_are_counted(tmp_path: Path) -> None:
    """As in human debates whose judge gave no probabilities: the right answer is lost with them."""
    row = {
        "question": "Where?", "answers": ["mat", "hat"], "isJudgeCorrect": True,
        "turns": [
            {"role": "Debater", "index": 0, "text": "mat!"},
            {"role": "Judge", "index": None, "text": "", "probabilities": [0.9, 0.1]},
        ],
    }  # fmt: skip
    unknown = row | {"turns": [row["turns"][0], {**row["turns"][1], "probabilities": None}]}
    file, words = tmp_path / "human.jsonl", ["--kind", "sft", "--output", str(tmp_path / "rows.jsonl"), "--speakers"]
    file.write_text(json.dumps(row) + "\n" + json.dumps(unknown) + "\n")
    for speakers, lacking in (("right", "no known right answer"), ("won", "no verdict")):
        done = CliRunner().invoke(data, [str(file), *words, speakers])
        assert f"1 of 2 rounds have {lacking}" in done.output
        assert "1 rows of 2 rounds" in done.output
    file.write_text(json.dumps(unknown) + "\n")
    assert CliRunner().invoke(data, [str(file), *words, "all"]).exit_code == 0
    refused = CliRunner().invoke(data, [str(file), *words, "right"])
    assert refused.exit_code == 2
    assert "have no row; 1 of them have no known right answer" in refused.output


def test_own_wordings_come_from_a_file(played: Transcript, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from lmgym.apps.debate.prompts.debate import PROMPTS as P\nPROMPTS = P | {'opening': 'Go.'}\n")
    rows = list(sft_rows([played], read_prompt_file(str(file))))
    assert rows[0]["prompt"][1]["content"].endswith("\n\nGo.")
    file.write_text("")
    with pytest.raises(InputError, match="no PROMPTS"):
        read_prompt_file(str(file))
