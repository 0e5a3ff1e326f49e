"""Exact returns of Blackjack and of tables, and the scripted players that follow from them."""

import numpy as np
import pytest

from lmgym.apps.games.ladder import GAMES, Measured, find_game
from lmgym.apps.games.toy_players import (
    best_moves,
    dealer_ends,
    draw,
    expected_return,
    hands,
    plan,
    tables,
    value_of_sticking,
)

LIMITS = {"frozen_lake": 100, "frozen_lake_slippery": 100, "frozen_lake_8x8": 100, "cliff_walking": 200, "taxi": 200}


def stick(hand):
    return 1.0, 0.0


def hit_below(total: int):
    return lambda hand: (0.0, 1.0) if hand[0] < total else (1.0, 0.0)


def best(hand):
    return (1.0, 0.0) if best_moves()[hand] == "stick" else (0.0, 1.0)


def test_a_sum_after_a_card_counts_an_ace_as_11_where_that_fits() -> None:
    assert draw(10, False, 1) == (21, True)
    assert draw(11, False, 1) == (12, False)
    assert draw(16, True, 9) == (15, False)
    assert draw(16, False, 9) == (25, False)
    assert draw(12, True, 1) == (13, True)  # a second ace is 1


def test_the_dealer_ends_with_known_probabilities() -> None:
    assert dealer_ends(17, False) == {17: 1.0}
    ends = dealer_ends(16, False)
    assert ends[17] == pytest.approx(1 / 13)
    assert ends[0] == pytest.approx(8 / 13)  # 6 to 10, of which four kinds count 10
    assert sum(dealer_ends(11, True).values()) == pytest.approx(1)
    assert value_of_sticking(21, 7) > 0.9
    assert value_of_sticking(12, 7) == value_of_sticking(16, 7)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(stick, -0.181), (hit_below(17), -0.078), (hit_below(20), -0.351), (hit_below(99), -1.0), (best, -0.048)],
)
def test_expected_returns_are_those_that_were_measured_over_100_000_games(policy, expected: float) -> None:
    assert expected_return(policy) == pytest.approx(expected, abs=3 * 0.003)  # three standard errors


def test_the_expected_return_agrees_with_play_and_counts_illegal_replies() -> None:
    pytest.importorskip("gymnasium")
    game = find_game("blackjack")
    for name, policy in (("heuristic", hit_below(17)), ("random", lambda hand: (0.5, 0.5))):
        found = game.measure(game.players[name], 2000)
        assert abs(found.mean - expected_return(policy)) < 4 * found.error
    # a tenth of the replies is illegal: each costs 1 and is said again, 1/9 of them per move
    fair, clumsy = expected_return(lambda hand: (0.5, 0.5)), expected_return(lambda hand: (0.45, 0.45))
    moves = (fair - clumsy) / (1 / 9)
    assert 1 < moves < 2  # of an episode of random moves


def test_the_best_moves_are_basic_strategy() -> None:
    moves = best_moves()
    assert len(hands()) == len(moves) > 250
    assert all(moves[total, dealer, False] == "stick" for total in range(17, 22) for dealer in range(1, 11))
    assert all(moves[total, dealer, False] == "hit" for total in range(12, 17) for dealer in (7, 8, 9, 10, 1))
    assert moves[13, 4, False] == "stick"
    assert moves[18, 9, True] == "hit"
    assert moves[18, 6, True] == "stick"


def test_a_plan_by_hand() -> None:
    """Two states: 0 goes on for 1 or ends for 3; with one step left it ends, before that it goes on."""
    table = {
        0: {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 1, 3.0, True)]},
        1: {0: [(1.0, 1, 0.0, True)], 1: [(1.0, 1, 0.0, True)]},
    }
    actions, values = plan(*tables(table), 3)
    assert actions[1:, 0].tolist() == [1, 0, 0]
    assert values[:, 0].tolist() == [0.0, 3.0, 4.0, 5.0]
    assert values[:, 1].tolist() == [0.0] * 4


@pytest.mark.parametrize("name", LIMITS)
def test_the_recorded_optimum_is_the_planned_value(name: str) -> None:
    pytest.importorskip("gymnasium")
    game = GAMES[name]
    env = game.make().env.unwrapped
    _, values = plan(*tables(env.P), LIMITS[name])
    best, measured = float(env.initial_state_distrib @ values[-1]), game.measured["optimal"]
    assert abs(measured.mean - best) <= 3 * measured.error + 1e-6
    for figures in game.measured.values():
        assert figures.mean <= best + 3 * figures.error + 1e-6


@pytest.mark.parametrize("name", ["frozen_lake", "cliff_walking", "taxi"])
def test_scripted_players_earn_in_their_order(name: str) -> None:
    pytest.importorskip("gymnasium")
    game = GAMES[name]
    returns = {player: game.measure(script, 12) for player, script in game.players.items()}
    assert returns["random"].mean < returns["optimal"].mean
    assert returns["heuristic"].mean <= returns["optimal"].mean
    assert abs(returns["optimal"].mean - game.measured["optimal"].mean) < 2


def test_a_measurement_has_its_standard_error() -> None:
    found = Measured.of([1.0, 3.0])
    assert (found.mean, found.error, found.episodes) == (2.0, 1.0, 2)
    assert np.isnan(Measured.of([1.0]).error)
