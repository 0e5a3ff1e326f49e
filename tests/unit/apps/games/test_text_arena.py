"""textarena's games: agents, moves, rewards, scripted players, and its random state kept apart."""

import random
import sys

import numpy as np
import pytest

from lmgym.apps.games.arena_players import board, consistent_codes, most_even_guess, nim_sum, pegs
from lmgym.apps.games.ladder import GAMES
from lmgym.apps.games.replies import OwnRandomState
from lmgym.apps.games.text_arena import TextArena, guesses, removals, squares
from lmgym.environments.protocol import Observation
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

BOARD = """As Player 0 in Tic Tac Toe. You are Player 0
[GAME] Current Board:

 O | 1 | X
---+---+---
 3 | O | 5
---+---+---
 6 | 7 | X

Available Moves: '[1]', '[3]', '[5]', '[6]', '[7]'"""
NIM = "[GAME] Current Pile:\n  pile 0: 3\n[GAME] Current Pile:\n  pile 0: 1\n  pile 1: 4\n  pile 2: 5"
CODES = (
    "the code that is 3 digits long, each digit from 1 to 3, with no duplicates.\n[GAME] Submitted [1 2 3]. Feedback: "
    "1 black peg(s), 2 white peg(s)."
)


def seen(text: str) -> Observation:
    return Observation(Conversation((Turn("user", text),)))


def move(player, text: str) -> str:
    return player(None, seen(text), np.random.default_rng(0))


def test_moves_are_read_from_what_is_shown() -> None:
    assert squares(BOARD) == ["[1]", "[3]", "[5]", "[6]", "[7]"]
    assert removals(NIM) == ["[0 1]", *(f"[1 {n}]" for n in range(1, 5)), *(f"[2 {n}]" for n in range(1, 6))]
    assert guesses(CODES) == ["[1 3 2]", "[2 1 3]", "[2 3 1]", "[3 1 2]", "[3 2 1]"]
    assert guesses("with possible repeats") == []


def test_scripted_players_find_the_best_moves() -> None:
    assert board(BOARD) == "O X O   X"
    players = GAMES["tic_tac_toe"].players
    # X threatens 2-5-8 and O has no line of two that is open: block
    assert {move(players[name], BOARD) for name in ("heuristic", "optimal")} == {"[5]"}
    assert move(nim_sum, NIM) == "[2 1]"  # 1 ^ 4 ^ 5 is 0, a lost position: one object of the largest pile
    assert move(nim_sum, NIM.replace("pile 0: 1", "pile 0: 3")) == "[0 2]"  # 3 becomes 1
    assert move(players["heuristic"], BOARD.replace("5\n---", "O\n---", 1).replace("'[5]', ", "")) == "[3]"  # it wins


def test_codes_that_agree_with_the_answers_are_left() -> None:
    assert pegs((1, 2, 3), (1, 3, 2)) == (1, 2)
    assert pegs((1, 2, 3, 4), (5, 1, 3, 6)) == (1, 1)
    assert consistent_codes(CODES) == ["[1 3 2]", "[2 1 3]", "[3 2 1]"]
    assert move(most_even_guess, CODES) in consistent_codes(CODES)


def test_a_games_own_random_state_is_its_own() -> None:
    own, other = OwnRandomState(), OwnRandomState()
    for state in (own, other):
        state.seed(7)
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    drawn = {id(own): [], id(other): []}
    for state in (own, other, other, own):
        with state.active():
            drawn[id(state)].append((random.random(), np.random.rand()))
    with pytest.raises(KeyError), own.active():
        raise KeyError
    assert (random.random(), np.random.rand()) == expected
    assert drawn[id(own)] == drawn[id(other)]
    assert len(set(drawn[id(own)])) == 2


def test_without_textarena_the_message_has_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(InputError, match=r"needs textarena .*; needed: pip install 'lmgym\[textarena\]'"):
        TextArena("Nim-v0")


def test_players_act_in_turn_and_are_rewarded_at_the_end() -> None:
    pytest.importorskip("textarena")
    game = TextArena("TicTacToe-v0")
    shown = game.reset({}, 0)
    assert list(shown) == ["player_0"]
    assert shown["player_0"].actions == tuple(f"[{i}]" for i in range(9))
    results = [game.step({f"player_{i % 2}": reply}) for i, reply in enumerate(("[0]", "[3]", "[1]", "[4]", "[2]"))]
    assert [list(result.observations) for result in results] == [["player_1"], ["player_0"]] * 2 + [[]]
    assert "You are Player 1" in results[0].observations["player_1"].prompt.turns[0].text
    assert [dict(result.rewards) for result in results] == [{}] * 4 + [{"player_0": 1.0, "player_1": -1.0}]
    assert results[-1].info == {"steps": 5.0, "player_0_won": 1.0, "player_1_won": 0.0}


def test_a_second_illegal_move_ends_the_game_and_who_never_acted_is_not_rewarded() -> None:
    pytest.importorskip("textarena")
    game = TextArena("Nim-v0")
    game.reset({}, 0)
    assert list(game.step({"player_0": "hm"}).observations) == ["player_0"]
    result = game.step({"player_0": "[9 9]"})
    assert (result.rewards, result.terminated) == ({"player_0": -1.0}, True)


def test_a_game_is_truncated_after_max_steps() -> None:
    pytest.importorskip("textarena")
    game = TextArena("Mastermind-v0", max_steps=2)
    shown = game.reset({}, 0)["policy"]
    assert len(shown.actions) == 360
    results = [game.step({"policy": code}) for code in shown.actions[:2]]
    assert [(r.truncated, r.terminated) for r in results] == [(False, False), (True, False)]
    assert len(results[1].observations["policy"].actions) == 358


def test_the_number_of_players_is_the_games_own() -> None:
    pytest.importorskip("textarena")
    assert [TextArena(name).players for name in ("Mastermind-v0", "Nim-v0", "LiarsDice-v0")] == [1, 2, 2]
    assert TextArena("LiarsDice-v0", players=4).agents == ["player_0", "player_1", "player_2", "player_3"]
    with pytest.raises(InputError, match=r"textarena has no 'Masterminds-v0'; did you mean Mastermind-v0\?"):
        TextArena("Masterminds-v0")


@pytest.mark.parametrize("name", ["tic_tac_toe", "nim", "mastermind"])
def test_scripted_players_earn_what_was_recorded(name: str) -> None:
    pytest.importorskip("textarena")
    game = GAMES[name]
    for player, recorded in game.measured.items():
        found = game.measure(game.players[player], 60, seed=10**6)
        assert abs(found.mean - recorded.mean) <= 4 * max(found.error, 0.02)
