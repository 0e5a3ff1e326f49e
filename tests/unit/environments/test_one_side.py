"""A policy against an opponent, on the side that the task names."""

import pytest

from lmgym.apps.games.alternating import SIDES
from lmgym.apps.games.self_play.two_players import find_two_player_game, random_moves
from lmgym.environments.one_side import OneSide, both_sides
from lmgym.errors import InputError

GAME = find_two_player_game("tic_tac_toe")


def test_the_policy_has_the_side_of_the_task_and_the_return_is_reported_by_side() -> None:
    for side, own, reward in (("first", "policy", 1.0), ("second", "opponent", -1.0)):
        game = OneSide(GAME.make(), SIDES)
        shown = game.reset({"side": side}, 0)
        assert list(shown) == [own]
        for number, cell in enumerate("14253"):
            mover = own if number % 2 == 0 else {"policy": "opponent", "opponent": "policy"}[own]
            result = game.step({mover: cell})
        assert result.rewards == {"policy": reward, "opponent": -reward}
        found = {name: result.info[name] for name in (f"return_{side}", "won", "lost", "first_won")}
        assert found == {f"return_{side}": reward, "won": float(reward > 0), "lost": float(reward < 0), "first_won": 1}


def test_tasks_change_sides_in_turn() -> None:
    assert both_sides(SIDES, 3) == [{"side": "first"}, {"side": "second"}, {"side": "first"}]


def test_random_moves_are_legal_moves_of_both_sides() -> None:
    moves = random_moves(GAME, 60)
    assert len(moves) >= 60
    texts = [prompt.turns[-1].text for prompt, _ in moves]
    assert {text[:9] for text in texts} == {"You are X", "You are O"}
    assert all(move in text.split() for text, (_, move) in zip(texts, moves, strict=True))
    assert random_moves(GAME, 60) == moves
    assert random_moves(GAME, 60, seed=1) != moves


def test_an_unknown_game_or_script_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"tic_tac_to.*needed: one of tic_tac_toe"):
        find_two_player_game("tic_tac_to")
    with pytest.raises(InputError, match="no scripted player 'strong'; needed: one of random, heuristic, optimal"):
        GAME.script("strong")
