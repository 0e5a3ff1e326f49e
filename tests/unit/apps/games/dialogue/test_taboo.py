"""Taboo: clues, guesses, and forbidden words."""

import pytest
from dialogues import begun, said, scores, shown

from lmgym.apps.games.dialogue.games import GAMES, play_scripted
from lmgym.apps.games.dialogue.taboo import forbidden_in, is_variant
from lmgym.errors import InputError

BELL = {"game_id": 7, "target_word": "bell", "related_word": ["ring", "church", "toll"]}
CLUE = ("describer", "CLUE: it sounds on Sundays")
WRONG = ("guesser", "GUESS: organ")


def test_a_word_guessed_in_round_two_scores_fifty() -> None:
    game = begun("taboo", BELL)
    result = said(game, CLUE, WRONG)
    assert shown(result) == "GUESS: organ"
    assert shown(said(game, ("describer", " clue: smaller "))) == "CLUE: smaller"
    result = said(game, ("guesser", "guess: Bell."))
    assert result.terminated
    assert result.rewards == {"describer": 0.5, "guesser": 0.5}
    assert result.info["main_score"] == 50
    assert scores(game)["Main Score"] == 50
    assert (scores(game)["Success"], scores(game)["Lose"], scores(game)["Aborted"]) == (1, 0, 0)
    assert scores(game)["Request Count"] == 4


def test_three_wrong_guesses_lose() -> None:
    game = begun("taboo", BELL)
    result = said(game, *3 * [CLUE, WRONG])
    assert result.terminated
    assert result.rewards == {"describer": 0, "guesser": 0}
    assert (scores(game)["Main Score"], scores(game)["Lose"]) == (0, 1)


@pytest.mark.parametrize("clue", ["a bell", "Bells, many", "bellringer", "tolling", "a CHURCH", "rings"])
def test_a_forbidden_word_its_variants_and_parts_lose_and_only_the_describer_has_acted(clue: str) -> None:
    game = begun("taboo", BELL)
    result = said(game, ("describer", f"CLUE: {clue}"))
    assert result.terminated
    assert result.rewards == {"describer": 0.0}
    assert (scores(game)["Lose"], scores(game)["Aborted"]) == (1, 0)


@pytest.mark.parametrize("reply", ["", "it sounds", "CLUE:", "CLUE:  \n", "I say CLUE: it sounds", "GUESS: bell"])
def test_a_clue_of_another_form_aborts(reply: str) -> None:
    game = begun("taboo", BELL)
    result = said(game, ("describer", reply))
    assert result.rewards == {"describer": -1}
    found = scores(game)
    assert (found["Aborted"], found["Success"], found["Lose"]) == (1, 0, 0)
    assert found["Main Score"] != found["Main Score"]  # nan
    assert (found["Violated Request Count"], found["Parsed Request Count"]) == (1, 0)


@pytest.mark.parametrize("reply", ["bell", "GUESS: a bell", "GUESS:", "GUESS: bell\nGUESS: organ", "GUESS: 🔔"])
def test_a_guess_of_another_form_aborts_and_costs_the_guesser_alone(reply: str) -> None:
    result = said(begun("taboo", BELL), CLUE, ("guesser", reply))
    assert result.rewards == {"describer": 0, "guesser": -1}
    assert (result.info["aborted_by_guesser"], result.info["aborted_by_describer"]) == (1, 0)


def test_the_reward_may_be_that_of_the_outcome() -> None:
    right = ("guesser", "GUESS: bell")
    assert said(begun("taboo", BELL, "outcome"), CLUE, WRONG, CLUE, right).rewards["guesser"] == 1
    with pytest.raises(InputError, match="reward='score'; needed: main_score or outcome"):
        begun("taboo", BELL, "score")


@pytest.mark.parametrize(
    ("one", "other", "is_one"),
    [
        ("running", "run", True), ("making", "make", True), ("cities", "city", True), ("toothbrush", "brush", True),
        ("bigger", "big", True), ("each", "teacher", False), ("cartoon", "car", False), ("sea", "season", False),
    ],
)  # fmt: skip
def test_variants_have_a_stem_or_a_long_part_in_common(one: str, other: str, is_one: bool) -> None:
    assert is_variant(one, other) == is_variant(other, one) == is_one


def test_the_forbidden_word_is_named() -> None:
    assert forbidden_in("two big Islands", ("island", "sea")) == ("islands", "island")
    assert forbidden_in("", ("island",)) is None


def test_a_scripted_describer_helps_a_wrong_guesser_with_letters() -> None:
    players = {"describer": "winner", "guesser": "loser"}
    lost = play_scripted(GAMES["taboo"], {"instance": BELL | {"target_word": "tulip"}}, players)
    clues = [e["action"]["content"] for turn in lost.interactions["turns"] for e in turn if e["from"] == "Player 1"]
    assert clues[1:] == ["CLUE: 5 letters, and t u in front", "CLUE: 5 letters, and t u l in front"]
    assert lost.outcome["Lose"] == 1


def test_an_instance_of_another_version_is_refused() -> None:
    with pytest.raises(InputError, match="an instance of taboo has no related_word, but game_id, target_word; needed"):
        begun("taboo", {"game_id": 1, "target_word": "bell"})
