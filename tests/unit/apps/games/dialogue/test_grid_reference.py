"""The reference game: three grids, an expression and an answer."""

import numpy as np
import pytest
from dialogues import begun, said, scores

from lmgym.apps.games.dialogue.games import GAMES
from lmgym.apps.games.dialogue.grid_reference import EXPERIMENTS, FOLLOWER_GRIDS, GIVER_GRIDS, draw

EXPRESSION = ("instruction_giver", "Expression: the one with a cross")


def instance(seed: int = 0) -> dict:
    return draw(np.random.default_rng(seed), "lines").instance


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_three_different_grids_are_shown_to_both_in_another_order(experiment: str) -> None:
    places = set()
    for seed in range(20):
        drawn = draw(np.random.default_rng(seed), experiment).instance
        grids = [drawn[name] for name in GIVER_GRIDS]
        assert len(set(grids)) == 3
        assert sorted(grids) == sorted(drawn[name] for name in FOLLOWER_GRIDS)
        word, number = drawn["target_grid_name"]
        places.add(number)
        assert drawn[f"player_2_{word}_grid"] == drawn["player_1_target_grid"]
    assert places == {"1", "2", "3"}


@pytest.mark.parametrize("is_word", [True, False])
def test_the_right_grid_scores_a_hundred(is_word: bool) -> None:
    game = begun("grid_reference", instance())
    word, number = instance()["target_grid_name"]
    result = said(game, EXPRESSION, ("instruction_follower", f"answer: {word if is_word else number}."))
    assert result.rewards == {"instruction_giver": 1, "instruction_follower": 1}
    assert scores(game)["Main Score"] == 100


def test_another_grid_scores_nothing() -> None:
    game = begun("grid_reference", instance())
    [wrong, *_] = sorted({"first", "second", "third"} - set(instance()["target_grid_name"]))
    assert said(game, EXPRESSION, ("instruction_follower", f"Answer: {wrong}")).rewards["instruction_giver"] == 0
    assert scores(game)["Lose"] == 1


@pytest.mark.parametrize("reply", ["", "first", "Answer: fourth", "Answer: first or second", "Answer: 12"])
def test_an_answer_of_another_form_aborts(reply: str) -> None:
    game = begun("grid_reference", instance())
    result = said(game, EXPRESSION, ("instruction_follower", reply))
    assert result.rewards == {"instruction_giver": 0, "instruction_follower": -1}


def test_an_expression_of_another_form_aborts_before_the_follower_acts() -> None:
    result = said(begun("grid_reference", instance()), ("instruction_giver", "A cross"))
    assert result.rewards == {"instruction_giver": -1}


def test_the_follower_reads_the_whole_expression_but_not_the_target() -> None:
    result = said(begun("grid_reference", instance()), ("instruction_giver", "Expression: a {cross}\nin line 2"))
    text = result.observations["instruction_follower"].prompt.turns[0].text
    assert text.endswith("Expression: a {cross}\nin line 2")
    assert "Target" not in text


def test_scripts_understand_each_other_on_scattered_cells() -> None:
    game = GAMES["grid_reference"]
    for task in game.tasks(20):
        environment = game.environment()
        seen = environment.reset(task, 0)
        while seen:
            [(role, observation)] = seen.items()
            reply = game.script(role)(observation.prompt, np.random.default_rng(0))
            seen = environment.step({role: reply}).observations
        assert scores(environment)["Success"] == 1
