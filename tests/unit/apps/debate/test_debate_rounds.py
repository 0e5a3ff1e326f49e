"""Rounds: who read what at which time, by hand, for each role and format; the verdict, its swap, and rewards."""

import json

import pytest
from acting import TOKENIZER, Scripted

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import (
    FIRST,
    JUDGE,
    SECOND,
    Format,
    Slot,
    consultancy,
    debate,
    double_consultancy,
    interactive_debate,
    judge_alone,
    moderated_debate,
    open_debate,
)
from lmgym.apps.debate.prompts import consultancy as consultancy_set
from lmgym.apps.debate.prompts import debate as debate_set
from lmgym.apps.debate.prompts import open_debate as open_set
from lmgym.apps.debate.transcript import from_row, to_row
from lmgym.environments.rollout_engine import run_episodes
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, ScriptedGenerator

TASK = {
    "question": "Where is the cat?",
    "options": ["on the mat", "in the hat"],
    "correct": 0,
    "text": "All day the cat sat on the mat. The hat was empty.",
    "flipped": False,
}
A1, B1, A2, B2 = "alpha-1", "beta-1", "alpha-2", "beta-2"
MARKS = (A1, B1, A2, B2, "gamma-1", "delta-1", "delta-2", "note-A1", "note-B1", "note-A2", "note-B2", "note-J")


def play(format: Format, prompts, said: dict[str, list[str]], **task) -> tuple[Debate, list[tuple[str, list[str]]]]:
    """The round, and for each action in order the agent and the marks that it had read."""
    round, waiting, read = Debate(format, prompts), {agent: list(texts) for agent, texts in said.items()}, []
    observations = round.reset(TASK | task, seed=3)
    while not round.ended:
        for agent, observation in observations.items():
            text = " ".join(turn.text for turn in observation.prompt.turns)
            read.append((agent, [mark for mark in MARKS if mark in text]))
        observations = round.step({agent: waiting[agent].pop(0) for agent in observations}).observations
    assert not any(waiting.values())
    return round, read


def test_speeches_of_a_round_of_debate_are_simultaneous() -> None:
    said = {FIRST: [A1, A2], SECOND: [B1, B2], JUDGE: ["Debater_A | 70%"]}
    _, read = play(debate(2), debate_set.PROMPTS, said)
    assert read == [
        (FIRST, []), (SECOND, []), (FIRST, [A1, B1]), (SECOND, [A1, B1]), (JUDGE, [A1, B1, A2, B2]),
    ]  # fmt: skip


def test_in_a_sequential_debate_the_second_debater_has_heard_the_first() -> None:
    said = {FIRST: [A1, A2], SECOND: [B1, B2], JUDGE: ["Debater_A"]}
    _, read = play(debate(2, simultaneous=False), debate_set.PROMPTS, said)
    assert read == [
        (FIRST, []), (SECOND, [A1]), (FIRST, [A1, B1]), (SECOND, [A1, B1, A2]), (JUDGE, [A1, B1, A2, B2]),
    ]  # fmt: skip


def test_a_consultant_speaks_alone_and_a_flipped_one_for_the_other_answer() -> None:
    said = {FIRST: [A1, A2], JUDGE: ["Debater_A"]}
    round, read = play(consultancy(2), consultancy_set.PROMPTS, said)
    assert read == [(FIRST, []), (FIRST, [A1]), (JUDGE, [A1, A2])]
    assert (round.transcript.positions[FIRST], round.transcript.correct) == ("on the mat", FIRST)
    round, _ = play(consultancy(2), consultancy_set.PROMPTS, said, flipped=True)
    assert (round.transcript.positions[FIRST], round.transcript.correct) == ("in the hat", SECOND)


def test_two_consultants_do_not_hear_each_other() -> None:
    said = {FIRST: [A1, A2], SECOND: [B1, B2], JUDGE: ["Debater_A"]}
    _, read = play(double_consultancy(2), consultancy_set.PROMPTS, said)
    assert read == [(FIRST, []), (SECOND, []), (FIRST, [A1]), (SECOND, [B1]), (JUDGE, [A1, B1, A2, B2])]


def test_in_an_open_debate_the_first_debater_chooses_its_answer() -> None:
    said = {FIRST: ["I take 2.", A1, A2], SECOND: [B1, B2], JUDGE: ["Debater_A"]}
    round, read = play(open_debate(2), open_set.PROMPTS, said)
    assert round.transcript.positions == {FIRST: "in the hat", SECOND: "on the mat"}
    assert round.transcript.correct == SECOND
    assert read[1:] == [
        (FIRST, []), (SECOND, []), (FIRST, [A1, B1]), (SECOND, [A1, B1]), (JUDGE, [A1, B1, A2, B2]),
    ]  # fmt: skip
    round, _ = play(open_debate(2), open_set.PROMPTS, said | {FIRST: ["1 or 2", A1, A2]})
    assert round.transcript.correct == FIRST  # not readable: as it was


def test_a_judge_alone_reads_the_question_and_both_answers_only() -> None:
    round = Debate(judge_alone(), debate_set.PROMPTS)
    [(agent, observation)] = round.reset(TASK, seed=0).items()
    assert agent == JUDGE
    [turn] = observation.prompt.turns
    assert all(text in turn.text for text in ("Where is the cat?", "on the mat", "in the hat"))
    assert "All day" not in turn.text + observation.prompt.persona


def test_questions_of_the_judge_are_heard_by_both_debaters() -> None:
    said = {FIRST: [A1, A2], SECOND: [B1, B2], JUDGE: ["gamma-1", "Debater_B | 60%"]}
    round, read = play(interactive_debate(2), debate_set.PROMPTS, said)
    assert read[2:] == [
        (JUDGE, [A1, B1]), (FIRST, [A1, B1, "gamma-1"]), (SECOND, [A1, B1, "gamma-1"]),
        (JUDGE, [A1, B1, A2, B2, "gamma-1"]),
    ]  # fmt: skip
    assert round.transcript.verdict.p_first == pytest.approx(0.4)


def test_the_judge_picks_who_speaks_next() -> None:
    said = {SECOND: [B1, B2], FIRST: [A1], JUDGE: ["debater_b, please", "Debater_B", "nobody", "Debater_A"]}
    _, read = play(moderated_debate(3), debate_set.PROMPTS, said)
    # without a name the one who has spoken less is next
    assert [agent for agent, _ in read] == [JUDGE, SECOND, JUDGE, SECOND, JUDGE, FIRST, JUDGE]
    assert read[5] == (FIRST, [B1, B2])


@pytest.mark.parametrize("steps", range(7))
def test_a_round_goes_on_from_its_transcript(steps: int) -> None:
    said = iter(["Debater_B", B1, "neither", A1, "Debater_A", A2, "Debater_A | 70%"])
    round, again = (Debate(moderated_debate(3), debate_set.PROMPTS) for _ in range(2))
    observations = round.reset(TASK, 0)
    for _ in range(steps):
        observations = round.step(dict.fromkeys(observations, next(said))).observations
    assert again.reset({"transcript": round.transcript}, 0) == observations
    assert (again.slot, again.picked) == (round.slot, round.picked)
    earlier = again.reset({"transcript": round.transcript.up_to(0), "slot": 6}, 0)
    assert list(earlier) == [JUDGE]


def test_a_column_of_a_task_that_is_called_transcript_is_no_round() -> None:
    round = Debate(debate(1), debate_set.PROMPTS)
    assert set(round.reset(TASK | {"transcript": "of a call", "slot": 7}, 0)) == {FIRST, SECOND}


def test_half_a_surrogate_pair_in_a_speech_is_a_question_mark() -> None:
    round = Debate(debate(2), debate_set.PROMPTS)
    round.reset(TASK, 0)
    observations = round.step({FIRST: "so \ud800", SECOND: B1}).observations
    assert observations[SECOND].prompt.turns[-1].text.encode()
    assert [speech.text for speech in round.transcript.speeches] == ["so ?", B1]


def test_notes_are_their_authors_alone() -> None:
    said = {
        FIRST: ["note-A1", A1, "note-A2", A2],
        SECOND: ["note-B1", B1, "note-B2", B2],
        JUDGE: ["note-J", "Debater_A"],
    }
    _, read = play(debate(2).with_scratchpads().with_reasoning(), debate_set.PROMPTS, said)
    both = [A1, B1]
    assert read == [
        (FIRST, []), (SECOND, []), (FIRST, ["note-A1"]), (SECOND, ["note-B1"]),
        (FIRST, [*both, "note-A1"]), (SECOND, [*both, "note-B1"]),
        (FIRST, [*both, "note-A1", "note-A2"]), (SECOND, [*both, "note-B1", "note-B2"]),
        (JUDGE, [*both, A2, B2]), (JUDGE, [*both, A2, B2, "note-J"]),
    ]  # fmt: skip


def test_shown_notes_are_read_by_the_judge_and_not_by_the_opponent() -> None:
    said = {FIRST: ["note-A1", A1], SECOND: ["note-B1", B1], JUDGE: ["Debater_A"]}
    shown = debate(1).with_scratchpads(tokens=7, shown=True)
    assert [slot.max_tokens for slot in shown.slots] == [7, 300, 150]
    round, read = play(shown, debate_set.PROMPTS, said)
    assert read == [
        (FIRST, []), (SECOND, []), (FIRST, ["note-A1"]), (SECOND, ["note-B1"]), (JUDGE, [A1, B1, "note-A1", "note-B1"]),
    ]  # fmt: skip
    assert from_row(json.loads(json.dumps(to_row(round.transcript)))) == round.transcript


def test_an_agent_may_have_wordings_of_its_own() -> None:
    own = {SECOND: debate_set.PROMPTS | {"opening": "Sing, <NAME>."}}
    round = Debate(debate(1), debate_set.PROMPTS, own_prompts=own)
    first, second = (observation.prompt.turns[-1].text for observation in round.reset(TASK, seed=0).values())
    assert second.endswith("Sing, Debater_B.")
    assert "Give your opening speech" in first
    with pytest.raises(InputError, match="unknown tags sing"):
        Debate(debate(1), debate_set.PROMPTS, own_prompts={FIRST: debate_set.PROMPTS | {"sing": "x"}})


def test_what_was_asked_becomes_what_was_said_and_roles_alternate() -> None:
    round = Debate(debate(2), debate_set.PROMPTS)
    round.reset(TASK, 0)
    observations = round.step({FIRST: A1, SECOND: B1}).observations
    for agent, opponent, own_speech, heard in ((FIRST, SECOND, A1, B1), (SECOND, FIRST, B1, A1)):
        asked, own, now = observations[agent].prompt.turns
        assert [turn.speaker for turn in observations[agent].prompt.turns] == ["user", "bot", "user"]
        assert "This is your speech in round 1." in asked.text
        assert "Give your opening" not in asked.text
        assert own.text == own_speech
        # after its own speech: it had not heard the other one when it spoke
        assert heard not in asked.text
        assert now.text.startswith(f"This is what {opponent} said in round 1:\n{heard}")
        assert "Give your speech for round 2" in now.text


def test_hearers_and_speaker_read_the_checked_speech_and_the_literal_one_is_kept() -> None:
    speech = "See <quote>the cat sit on the mat</quote> and <quote>the dog is in the hat</quote>"
    checked = "See <quote>the cat sat on the mat.</quote> and <invalid_quote>the dog is in the hat</invalid_quote>"
    round = Debate(debate(2), debate_set.PROMPTS)
    round.reset(TASK, 0)
    observations = round.step({FIRST: speech, SECOND: B1}).observations
    assert observations[FIRST].prompt.turns[1].text == checked
    assert checked in observations[SECOND].prompt.turns[-1].text
    [first, _] = round.transcript.speeches
    assert (first.text, first.raw, [quote.status for quote in first.quotes]) == (checked, speech, ["fuzzy", "invalid"])


def test_the_verdict_of_a_flipped_round_is_the_swapped_one() -> None:
    """The same judge, sure of the mat, whichever side argues for it."""
    plain, _ = play(debate(1), debate_set.PROMPTS, {FIRST: [A1], SECOND: [B1], JUDGE: ["Debater_A | 80%"]})
    swapped, _ = play(
        debate(1), debate_set.PROMPTS, {FIRST: [A1], SECOND: [B1], JUDGE: ["Debater_B | 80%"]}, flipped=True
    )
    assert plain.transcript.verdict.p_first == pytest.approx(0.8)
    assert swapped.transcript.verdict.p_first == pytest.approx(0.2)
    for round in (plain, swapped):
        assert round.transcript.verdict.p_of(round.transcript.correct) == pytest.approx(0.8)
        assert round.transcript.verdict.winner == round.transcript.correct


def test_rewards_are_p_win_less_the_baseline_of_the_side() -> None:
    round = Debate(debate(1), debate_set.PROMPTS, baselines=(0.67, 0.33))
    round.reset(TASK | {"flipped": True}, 0)
    round.step({FIRST: A1, SECOND: B1})
    result = round.step({JUDGE: "Debater_A | 90%"})
    assert result.terminated
    # Debater_B has the right answer: .1 - .67; Debater_A: .9 - .33; the judge gave the right answer .1
    assert result.rewards == pytest.approx({FIRST: 0.57, SECOND: -0.57, JUDGE: -0.4})
    assert result.info == pytest.approx({"speeches": 2, "p_correct": 0.1})


def test_a_scorers_verdict_is_requested_for_each_debater_that_spoke() -> None:
    round = Debate(debate(1), debate_set.PROMPTS, verdict="scorer")
    round.reset(TASK, 0)
    result = round.step({FIRST: A1, SECOND: B1})
    assert result.terminated
    assert [(request.agent, request.reply) for request in result.score_requests] == [(FIRST, FIRST), (SECOND, SECOND)]
    [text] = {request.prompt.turns[-1].text for request in result.score_requests}
    assert A1 in text
    assert B1 in text
    with pytest.raises(InputError, match="no speech to score"):
        Debate(judge_alone(), debate_set.PROMPTS, verdict="scorer").reset(TASK, 0)


def test_a_round_is_played_by_the_engine_and_replayed_from_its_seed() -> None:
    def replay():
        rounds = [Debate(debate(2), debate_set.PROMPTS, varied=True) for _ in range(3)]
        policy = Scripted(lambda text, seed: f"I say {seed % 97}", max_length=4096)
        task = {key: value for key, value in TASK.items() if key != "flipped"}
        judge = ScriptedGenerator(lambda conversation, rng: f"Debater_A | {rng.integers(100)}%")
        episodes = run_episodes(
            rounds, [task] * 3, [1, 2, 2], policy, TOKENIZER, Sampling(max_new_tokens=8), None, {JUDGE: judge}
        )
        assert [(e.index, e.agent, len(e.steps)) for e in episodes] == [
            (i, agent, 2) for i in range(3) for agent in (FIRST, SECOND)
        ]
        return [round.transcript for round in rounds]

    first, second, same = replay()
    assert [first, second, same] == replay()
    assert second == same
    assert first.speeches != second.speeches


def test_a_speech_has_at_most_as_many_words_as_its_slot_has_tokens() -> None:
    round = Debate(debate(1).with_tokens(speech=3), debate_set.PROMPTS)
    round.reset(TASK, 0)
    round.step({FIRST: "one two  three four five", SECOND: "one two three"})
    assert [speech.text for speech in round.transcript.speeches] == ["one two  three", "one two three"]


@pytest.mark.parametrize("format", [debate(2), open_debate(1), moderated_debate(2), double_consultancy(1)])
def test_a_transcript_is_the_same_after_its_row(format: Format) -> None:
    said = {FIRST: ["1 <quote>the cat sat on</quote>"] * 4, SECOND: ["<quote>x"] * 4, JUDGE: ["Debater_B | 0%"] * 4}
    round = Debate(format, open_set.PROMPTS)
    observations = round.reset(TASK, 0)
    while not round.ended:
        observations = round.step({agent: said[agent].pop() for agent in observations}).observations
    assert from_row(json.loads(json.dumps(to_row(round.transcript)))) == round.transcript


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": ["same", " same"]}, "two different answers"),
        ({"options": ["one"]}, "has 1 options"),
        ({"options": "mat"}, "needed: a list of two texts"),
        ({"correct": 2}, "correct=2; needed: 0 or 1"),
        ({"correct": True}, "correct=True; needed"),
        ({"question": 3}, "question=3; needed: text"),
        ({"question": " "}, "needed: a question and two answers"),
        ({"flipped": "no"}, "flipped='no'; needed"),
    ],
)
def test_rows_that_are_no_questions_are_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Debate(debate(1), debate_set.PROMPTS).reset(TASK | change, 0)


def test_transcripts_of_another_schema_are_refused() -> None:
    with pytest.raises(InputError, match=r"schema=None; needed: 'lmgym\.debate/1'; NYU"):
        from_row({"metadata": {}, "speeches": []})
    with pytest.raises(InputError, match=r"is not one of lmgym\.debate/1: no 'format'"):
        from_row({"schema": "lmgym.debate/1"})


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ((), "does not end in a verdict"),
        ((Slot((FIRST,)),), "does not end in a verdict"),
        ((Slot((JUDGE,), "verdict"), Slot((JUDGE,), "verdict")), "a verdict before its end"),
        ((Slot((JUDGE,)), Slot((JUDGE,), "verdict")), "a speech, is of"),
        ((Slot(("chosen",)), Slot((JUDGE,), "verdict")), "a slot of kind pick before it"),
        ((Slot((FIRST,), max_tokens=0), Slot((JUDGE,), "verdict")), "max_tokens=0"),
    ],
)
def test_orders_that_no_round_can_follow_are_refused(slots: tuple, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Format("mine", slots)
