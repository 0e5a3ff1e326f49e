"""Private and shared information: what is told, what is judged, and the score of both."""

import numpy as np
import pytest
from dialogues import begun, said, scores, shown

from lmgym.apps.games.dialogue.private_shared import SETTINGS, cohens_kappa, draw, mentions

TWO = {
    "questioner": "clerk", "facts": {"name": "Ada Low", "town": "Ghent"},
    "questions": {"town": "Where?", "name": "Who?"},
}  # fmt: skip
YES, NO = ("answerer", "ANSWER: yes"), ("answerer", "ANSWER: no")


def test_facts_are_judged_before_the_first_question_and_after_each_answer() -> None:
    game = begun("private_shared", TWO)
    result = said(game, NO, NO)
    assert shown(result) == "CLERK: Where?"
    result = said(game, ("answerer", "ANSWER: in Ghent"))
    assert shown(result) == "ME: Has the clerk been told your name?"
    assert shown(said(game, NO)) == "ME: Has the clerk been told your town?"
    assert shown(said(game, YES)) == "CLERK: Who?"
    result = said(game, ("answerer", "ANSWER: Ada Low"), YES, YES)
    assert result.terminated
    assert result.rewards == {"answerer": 1}
    assert result.info["requests"] == 8
    assert (scores(game)["Success"], scores(game)["Main Score"], scores(game)["Kappa"]) == (1, 100, 1)


def test_a_fact_told_early_counts_as_known() -> None:
    game = begun("private_shared", TWO)
    both = ("answerer", "ANSWER: Ada Low of Ghent")
    assert said(game, NO, NO, both, YES, YES, both, YES, YES).rewards == {"answerer": 1}


def test_the_score_is_the_harmonic_mean_of_answers_and_kappa() -> None:
    game = begun("private_shared", TWO)
    # the town is not told: one answer of two; judged yes for both at the end, of which the name is right
    result = said(game, NO, NO, ("answerer", "ANSWER: somewhere"), NO, NO, ("answerer", "ANSWER: Ada Low"), YES, YES)
    kappa = (5 / 6 - 11 / 18) / (1 - 11 / 18)  # agreement 5/6; by chance 1/3 x 1/6 + 2/3 x 5/6
    assert scores(game)["Kappa"] == pytest.approx(kappa)
    assert scores(game)["Slot-Filling-Accuracy"] == 0.5
    assert result.rewards["answerer"] == pytest.approx(2 * 0.5 * kappa / (0.5 + kappa))
    assert (scores(game)["Success"], scores(game)["Lose"]) == (0, 1)


@pytest.mark.parametrize(
    ("pairs", "kappa"),
    [
        ([(True, True), (False, False)], 1), ([(True, False), (False, True)], -1),
        ([(True, True), (True, False)], 0), ([(False, False)] * 3, 0), ([(True, True)] * 3, 0),
    ],
)  # fmt: skip
def test_kappa_is_agreement_beyond_chance(pairs, kappa) -> None:
    assert cohens_kappa(pairs) == kappa


def test_nothing_told_and_nothing_known_scores_nothing_without_a_division_by_zero() -> None:
    game = begun("private_shared", TWO)
    hidden = ("answerer", "ANSWER: I do not say")
    assert said(game, NO, NO, hidden, NO, NO, hidden, NO, NO).rewards == {"answerer": 0}
    assert scores(game)["Main Score"] == 0


@pytest.mark.parametrize("reply", ["", "no", "ANSWER:", "ANSWER: perhaps", "ANSWER: nobody", "ANSWER: yesterday"])
def test_a_judgement_of_another_form_aborts(reply: str) -> None:
    game = begun("private_shared", TWO)
    assert said(game, ("answerer", reply)).rewards == {"answerer": -1}
    assert scores(game)["Aborted"] == 1


def test_words_of_a_value_stand_next_to_each_other() -> None:
    assert mentions("I pay 500 euros, at most", "500 euros")
    assert not mentions("1500 euros", "500 euros")
    assert not mentions("two or five years", "two years")


@pytest.mark.parametrize("experiment", SETTINGS)
def test_questions_come_in_random_order(experiment: str) -> None:
    orders = {tuple(draw(np.random.default_rng(seed), experiment).instance["questions"]) for seed in range(12)}
    assert len(orders) > 3
