"""Tic-tac-toe and Nim by their rules, and the players of them."""

from functools import partial

import numpy as np
import pytest

from lmgym.apps.games.alternating import SIDES, Alternating, Rules, minimax, one_move_ahead, random_move
from lmgym.apps.games.nim import Nim
from lmgym.apps.games.tic_tac_toe import TicTacToe
from lmgym.environments.protocol import StepResult
from lmgym.text import Conversation, Turn


def play(rules: Rules, *replies: str) -> StepResult:
    """The result of the last of these replies, by either side in turn."""
    game, result = Alternating(rules), None
    shown = game.reset({}, 0)
    for number, reply in enumerate(replies):
        assert list(shown) == [SIDES[number % 2]]
        result = game.step({SIDES[number % 2]: reply})
        shown = result.observations
    assert result is not None
    return result


def asked(rules: Rules, state, side: int) -> Conversation:
    return Conversation((Turn("user", rules.show(state, side)),))


def test_three_in_a_line_win_and_the_rewards_add_up_to_0() -> None:
    result = play(TicTacToe(), "1", "4", "2", "5", "I take cell 3!")
    assert (result.terminated, result.rewards) == (True, {"first": 1.0, "second": -1.0})
    assert result.info == {"moves": 5.0, "drawn": 0.0, "illegal": 0.0, "first_won": 1.0, "second_won": 0.0}
    result = play(TicTacToe(), "1", "4", "2", "5", "9", "6")
    assert result.rewards == {"first": -1.0, "second": 1.0}


def test_a_full_board_without_a_line_is_a_draw() -> None:
    result = play(TicTacToe(), *"152374698")
    assert (result.rewards, result.info["drawn"]) == ({"first": 0.0, "second": 0.0}, 1.0)


@pytest.mark.parametrize("reply", ["1", "", "10", "4 or 6", "four"])
def test_an_illegal_reply_loses(reply: str) -> None:
    result = play(TicTacToe(), "1", reply)
    assert (result.terminated, result.rewards, result.info["illegal"]) == (True, {"second": -1.0, "first": 1.0}, 1.0)


@pytest.mark.parametrize("answer", ["5", "nothing"])
def test_after_an_illegal_first_reply_the_other_side_still_acts_and_wins(answer: str) -> None:
    result = play(TicTacToe(), "no")
    assert not result.terminated
    assert list(result.observations) == ["second"]
    assert play(TicTacToe(), "no", answer).rewards == {"first": -1.0, "second": 1.0}


def test_a_player_is_shown_its_mark_the_board_and_the_free_cells() -> None:
    [(side, seen)] = play(TicTacToe(), "1", "5", "9").observations.items()
    assert side == "second"
    assert isinstance(seen.prompt, Conversation)
    assert seen.prompt.turns[-1].text == "You are O.\nX 2 3\n4 O 6\n7 8 X"
    assert seen.actions == ("2", "3", "4", "6", "7", "8")
    assert TicTacToe().read(seen.prompt.turns[-1].text) == "X   O   X"
    [(side, seen)] = play(Nim(), "2 3").observations.items()
    assert isinstance(seen.prompt, Conversation)
    assert seen.prompt.turns[-1].text == "You are the second. Piles: 3 1 5"
    assert seen.actions == ("1 1", "1 2", "1 3", "2 1", "3 1", "3 2", "3 3", "3 4", "3 5")


def test_who_takes_the_last_of_nim_wins() -> None:
    assert play(Nim((1, 2)), "2 2", "1 1").rewards == {"second": 1.0, "first": -1.0}
    for illegal in ("1 2", "3 1", "1 0", "1", "1 1 1"):
        assert play(Nim((1, 2)), "2 1", illegal).rewards == {"second": -1.0, "first": 1.0}


def test_a_perfect_player_of_nim_leaves_a_nim_sum_of_0() -> None:
    for piles in ((3, 4, 5), (1, 4, 2), (0, 3, 5), (2, 2, 1)):
        for seed in range(5):
            move = minimax(Nim(), asked(Nim(), piles, 0), np.random.default_rng(seed))
            assert np.bitwise_xor.reduce(Nim().moves(piles)[move]) == 0


@pytest.mark.parametrize(
    ("state", "move"),
    [("XX OO    ", "3"), ("X   X   O", None), ("XX  O    ", "3"), ("OO XX   X", "3"), ("X  XO    ", "7")],
)
def test_players_win_where_they_can_and_block_where_they_must(state: str, move: str | None) -> None:
    rules = TicTacToe()
    side = (9 - state.count(" ")) % 2
    for player in (one_move_ahead, minimax):
        for seed in range(5):
            said = player(rules, asked(rules, state, side), np.random.default_rng(seed))
            assert said in rules.moves(state)
            assert move is None or said == move


def returns(first, second, games: int) -> list[float]:
    found = []
    for seed in range(games):
        rng, game = np.random.default_rng(seed), Alternating(TicTacToe())
        shown, result = game.reset({}, 0), StepResult()
        while not result.terminated:
            [(side, seen)] = shown.items()
            result = game.step({side: (first if side == "first" else second)(seen.prompt, rng)})
            shown = result.observations
        found.append(result.rewards["first"])
    return found


def test_a_perfect_player_never_loses_at_tic_tac_toe_on_either_side() -> None:
    perfect, chance, quick = (partial(p, TicTacToe()) for p in (minimax, random_move, one_move_ahead))
    assert min(returns(perfect, chance, 200)) >= 0
    assert max(returns(chance, perfect, 200)) <= 0
    assert set(returns(perfect, perfect, 20)) == {0.0}
    assert np.mean(returns(quick, chance, 200)) > 0.7
