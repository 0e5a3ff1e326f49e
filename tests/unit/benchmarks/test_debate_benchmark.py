"""benchmarks/debate.py at a tiny size, and what its debaters say."""

from dataclasses import replace
from pathlib import Path

import debate as benchmark
import numpy as np
import pytest
from debate_judge import PROMPTS, argue, held_out, play, wanted_fact

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import DEBATERS, FIRST, SECOND, debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.players.scripted import ScriptedPlayer
from lmgym.apps.debate.transcript import Transcript, Verdict


def test_the_benchmark_runs_at_a_tiny_size(tmp_path: Path) -> None:
    found = benchmark.run(tmp_path / "judge", questions=3, rows=16, steps=2, samples=(1, 2), seed=0)
    conditions = found["conditions"]
    rounds = {name: measured["accuracy"]["rounds"] for name, measured in conditions.items() if "less" not in name}
    assert rounds == {
        "judge alone": 6, "consultancy, 1": 6, "consultancy, 2": 6,
        **{f"consultancy, {side} {n}": 3 for side in ("honest", "dishonest") for n in (1, 2)},
        "debate, honest 1, dishonest 1": 6, "debate, honest 2, dishonest 2": 6,
        "debate, honest 1, dishonest 2": 3, "debate, honest 2, dishonest 1": 3,
    }  # fmt: skip
    assert conditions["consultancy, honest 1"].keys() == {"accuracy", "right_side"}
    assert {row["bias"] for row in found["audits"]["best of 2"]} >= {"P(right answer)", "longer", "copy", "flattery"}
    assert benchmark.run(tmp_path / "judge", 3, 16, 2, (1, 2), 0)["conditions"] == conditions


def spoken(*said: tuple[str, str]) -> Transcript:
    """A round with these speeches, decided for Debater_A, who has the right answer."""
    round = Debate(debate(1), PROMPTS)
    round.reset({"transcript": Transcript(held_out(1)[0], debate(1))}, 0)
    round.step(dict(said))
    return replace(round.transcript, verdict=Verdict(0.7))


def test_what_is_said_is_told_apart() -> None:
    fact = wanted_fact(Transcript(held_out(1)[0], debate(1)), FIRST)
    round = spoken((FIRST, f"<quote>{fact}</quote>"), (SECOND, "<quote>It is written that it is so</quote>"))
    assert benchmark.said(round, right_side=True) == {"quote": 1, "invented": 0, "claim": 0}
    assert benchmark.said(round, right_side=False) == {"quote": 0, "invented": 1, "claim": 0}
    round = spoken((FIRST, fact), (SECOND, fact))
    assert benchmark.said(round, right_side=True) == {"quote": 0, "invented": 0, "claim": 1}
    assert benchmark.said(round, right_side=False) == {"quote": 0, "invented": 0, "claim": 0}


def test_differences_are_paired_over_questions() -> None:
    rounds = play(debate(1), held_out(4), LetterJudge("z"), {"1": ScriptedPlayer(argue)})
    ours = [replace(t, verdict=Verdict(float(t.correct == FIRST))) for t in rounds]  # all right
    theirs = [replace(t, verdict=Verdict(float(t.flipped))) for t in rounds]  # all wrong
    apart = benchmark.difference(ours, theirs)
    assert (apart["value"], apart["high"]) == (1, 1)
    assert 0 < apart["low"] < 0.1, "four questions"
    mixed = [one if number % 2 else two for number, (one, two) in enumerate(zip(ours, theirs, strict=True))]
    assert benchmark.difference(ours, mixed)["value"] == 0.5


@pytest.mark.parametrize("agent", DEBATERS)
def test_debaters_say_their_answer_and_only_the_right_one_is_proved(agent: str) -> None:
    question = held_out(1)[0]
    round = Debate(debate(1), PROMPTS)
    round.reset({"transcript": Transcript(question, debate(1))}, 0)
    speeches = [argue(round, agent, np.random.default_rng(seed)) for seed in range(40)]
    assert all(speech.startswith(f"The answer is {round.transcript.positions[agent]}.") for speech in speeches)
    quotes = [q for said in speeches for q in round.with_speeches({agent: said}).speeches[0].quotes]
    assert {q.valid for q in quotes} == {True, False}
    assert {q.status for q in quotes if q.valid} == {"exact"}
    fact = wanted_fact(round.transcript, agent)
    assert {q.text == fact for q in quotes if q.valid} == {agent == FIRST}
