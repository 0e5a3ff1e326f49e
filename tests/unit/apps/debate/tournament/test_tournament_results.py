"""Figures from transcripts, by hand."""

import math
from dataclasses import replace

import pytest

from lmgym.apps.debate.debate import Debate
from lmgym.apps.debate.formats import FIRST, JUDGE, SECOND, debate
from lmgym.apps.debate.prompts.debate import PROMPTS
from lmgym.apps.debate.questions import Question
from lmgym.apps.debate.tournament.results import tournament_results
from lmgym.apps.debate.transcript import Transcript

TEXT = "The cat sat on the mat."


def played(
    question: str,
    players: tuple[str, str],
    verdict: str,
    flipped: bool = False,
    correct: int | None = 0,
    speech: str = "so",
):
    round = Debate(debate(1), PROMPTS)
    names = {FIRST: players[0], SECOND: players[1], JUDGE: "j"}
    subject = Question(question, ("mat", "hat"), correct, TEXT, question)
    round.reset({"transcript": Transcript(subject, round.format, flipped, players=names)}, 0)
    round.step({FIRST: speech, SECOND: "no <quote>the dog sat on the hat at noon</quote>"})
    round.step({JUDGE: verdict})
    return round.transcript


ROUNDS = [
    played("p", ("x", "y"), "Debater_A | 90%", speech="<quote>cat sat on the mat</quote> <quote>left open"),
    played("p", ("y", "x"), "Debater_A | 60%"),  # y is right and wins
    played("q", ("x", "y"), "Debater_A | 80%", flipped=True),  # x is wrong and wins
    played("q", ("y", "x"), "?", flipped=True),  # a tie; x is right
]


def test_the_judges_figures() -> None:
    judge = tournament_results(ROUNDS)["judge"]
    assert judge["accuracy"]["value"] == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert judge["accuracy"]["rounds"] == 4
    # two questions with means 1 and 1/4 say next to nothing
    assert judge["accuracy"]["low"] < 0.05
    assert judge["accuracy"]["high"] > 0.95
    assert judge["accuracy"]["questions"] == 2
    assert judge["probability_of_right"]["value"] == pytest.approx((0.9 + 0.6 + 0.2 + 0.5) / 4)
    assert judge["brier"]["value"] == pytest.approx((0.01 + 0.16 + 0.64 + 0.25) / 4)
    assert judge["readable"] == 0.75
    assert [(b["from"], b["rounds"], b["accuracy"]) for b in judge["calibration"]] == [
        (0.5, 1, 0.5), (pytest.approx(0.6), 1, 1.0), (pytest.approx(0.8), 1, 0.0), (pytest.approx(0.9), 1, 1.0),
    ]  # fmt: skip


def test_wins_by_player_side_and_answer() -> None:
    results = tournament_results(ROUNDS)
    assert results["sides"]["first_wins"]["value"] == pytest.approx(3.5 / 4)
    x, y = (results["players"][name] for name in "xy")
    assert x["wins"]["value"] == pytest.approx((1 + 0 + 1 + 0.5) / 4)
    assert y["wins"]["value"] == pytest.approx(1.5 / 4)
    assert x["wins_correct"]["value"] == pytest.approx((1 + 0.5) / 2)
    assert x["wins_incorrect"]["value"] == pytest.approx((0 + 1) / 2)
    assert x["wins_first"]["value"] == 1.0
    assert x["wins_second"]["value"] == pytest.approx(0.25)


def test_quotes_are_counted_apart_for_right_and_wrong_answers() -> None:
    x = tournament_results(ROUNDS)["players"]["x"]
    assert {key: x["speeches_correct"][key] for key in ("speeches", "quotes", "valid", "unclosed")} == {
        "speeches": 2, "quotes": 2, "valid": 1, "unclosed": 1,
    }  # fmt: skip
    assert x["speeches_incorrect"]["quotes"] == 1
    assert x["speeches_incorrect"]["valid_share"] == 0
    assert x["speeches_incorrect"]["words"] == pytest.approx((1 + 9) / 2)


def test_rounds_without_a_known_answer_count_for_wins_alone() -> None:
    results = tournament_results([played("p", ("x", "y"), "Debater_A", correct=None)])
    assert (results["judge"]["accuracy"]["value"], results["judge"]["accuracy"]["rounds"]) == (None, 0)
    assert results["players"]["x"]["wins"]["value"] == 1.0
    assert results["players"]["x"]["wins_correct"]["value"] is None


def test_a_round_against_itself_is_no_win_and_no_rounds_have_no_figures() -> None:
    x = tournament_results([played("p", ("x", "x"), "Debater_A")])["players"]["x"]
    assert x["wins"]["value"] is None
    assert (x["speeches_correct"]["speeches"], x["speeches_incorrect"]["speeches"]) == (1, 1)
    assert tournament_results([])["judge"]["readable"] is None


def test_six_rounds_give_bradley_terry_by_hand() -> None:
    # a chain, 2 to 1 each, with a virtual draw for each pair: odds of 2.5 to 1.5
    pairs = [("x", "y"), ("x", "y"), ("y", "x"), ("y", "z"), ("z", "y"), ("y", "z")]
    winners = ["A", "A", "A", "A", "B", "B"]  # x, x, y; y, y, z
    rounds = [
        played(str(i), pair, f"Debater_{w} | 70%") for i, (pair, w) in enumerate(zip(pairs, winners, strict=True))
    ]
    ratings = tournament_results(rounds)["ratings"]
    step = math.log(2.5 / 1.5)
    assert [(r["player"], r["bradley_terry"]) for r in ratings["players"]] == [
        ("x", pytest.approx(step)), ("y", pytest.approx(0, abs=1e-9)), ("z", pytest.approx(-step)),
    ]  # fmt: skip
    assert ratings["players"][0]["elo"] == pytest.approx(400 / math.log(10) * step)
    assert [(r["rounds"], r["score"]) for r in ratings["players"]] == [(3, 2 / 3), (6, 0.5), (3, 1 / 3)]
    assert all(r["low"] < r["elo"] < r["high"] for r in ratings["players"])
    pairs_won = {(p["first"], p["second"]): p["wins"]["value"] for p in tournament_results(rounds)["pairs"]}
    assert pairs_won == {("x", "y"): pytest.approx(2 / 3), ("x", "z"): None, ("y", "z"): pytest.approx(2 / 3)}


def test_rounds_about_one_question_count_once_for_the_intervals_of_ratings() -> None:
    one = tournament_results([played("p", ("x", "y"), "Debater_A"), played("p", ("x", "y"), "Debater_B")] * 5)
    many = tournament_results(
        [played(str(i), ("x", "y"), f"Debater_{'AB'[i % 2]}") for i in range(10)]
    )  # fmt: skip
    alone, several = (found["ratings"]["players"][0] for found in (one, many))
    assert (alone["low"], alone["high"], alone["questions"]) == (None, None, 1)
    assert several["high"] - several["low"] > 100


def test_players_that_no_rounds_connect_have_no_ratings_and_a_note() -> None:
    apart = tournament_results([played("p", ("w", "x"), "Debater_A"), played("p", ("y", "z"), "Debater_A")])["ratings"]
    assert apart["players"] == []
    assert "no chain of games connects y, z with w" in apart["note"]
    assert (
        tournament_results([played("p", ("x", "x"), "Debater_A")])["ratings"]["note"] == "no round between two players"
    )


def test_p_of_the_right_answer_after_each_slot() -> None:
    def after(transcript: Transcript, p: float) -> Transcript:
        speeches = [replace(s, p_first=p) if s.kind == "speech" else s for s in transcript.speeches]
        return replace(transcript, speeches=tuple(speeches))

    rounds = [after(ROUNDS[0], 0.9), after(ROUNDS[2], 0.3)]  # Debater_A is right, and then wrong
    [row] = tournament_results(rounds)["judge"]["after_speeches"]
    assert (row["slot"], row["value"], row["rounds"]) == (0, pytest.approx((0.9 + 0.7) / 2), 2)
    assert tournament_results(ROUNDS)["judge"]["after_speeches"] == []
