"""Bradley-Terry ratings: by hand, and where they cannot be."""

import numpy as np
import pytest

from lmgym.errors import InputError
from lmgym.scoring.ratings import ELO, Game, Rating, bradley_terry, rate


def games(first: str, second: str, won: int = 0, drawn: int = 0, lost: int = 0) -> list[Game]:
    return [Game(first, second, score) for score, n in ((1.0, won), (0.5, drawn), (0.0, lost)) for _ in range(n)]


def width(rating: Rating) -> float:
    assert rating.elo.low is not None
    assert rating.elo.high is not None
    return rating.elo.high - rating.elo.low


def test_the_strengths_of_two_players_are_the_log_odds_of_their_points() -> None:
    # 3 wins and 2 draws of 8 are 4 points to 4; 9 to 3 is ln 3, 191 points of Elo
    assert bradley_terry(np.array([[0.0, 4], [4, 0]])) == pytest.approx([0, 0])
    assert bradley_terry(np.array([[0.0, 9], [3, 0]])) == pytest.approx([np.log(3) / 2, -np.log(3) / 2])
    best, worst = rate(games("a", "b", won=8, drawn=2, lost=2), virtual_draws=0)
    assert (best.player, best.games, best.score) == ("a", 12, 0.75)
    assert best.elo.value - worst.elo.value == pytest.approx(400 * np.log10(3))
    assert best.elo.value + worst.elo.value == pytest.approx(0)


def test_the_strengths_of_three_players_by_hand() -> None:
    # a beats b 2 to 1, b beats c 2 to 1, a beats c 4 to 1: odds of 2 and 2 multiply to 4, so all three fit exactly
    wins = np.array([[0.0, 2, 4], [1, 0, 2], [1, 1, 0]])
    assert bradley_terry(wins) == pytest.approx([np.log(2), 0, -np.log(2)])
    # at the maximum each player's expected points are those it took
    uneven = np.array([[0.0, 5, 1], [2, 0, 3], [4, 1, 0]])
    found = bradley_terry(uneven)
    expected = 1 / (1 + np.exp(found[None, :] - found[:, None]))
    np.testing.assert_allclose(((uneven + uneven.T) * expected).sum(1), uneven.sum(1), atol=1e-8)


def test_sides_do_not_matter_and_draws_count_half() -> None:
    swapped = [Game(g.second, g.first, 1 - g.score) for g in games("a", "b", won=5, drawn=3, lost=2)]
    assert [(r.player, r.elo.value) for r in rate(swapped)] == [
        (r.player, pytest.approx(r.elo.value)) for r in rate(games("a", "b", won=5, drawn=3, lost=2))
    ]
    halves = rate(games("a", "b", won=4, lost=2), 0), rate(games("a", "b", won=2, drawn=4), 0)
    assert halves[0][0].elo.value == pytest.approx(200 * np.log10(2))
    assert halves[1][0].elo.value == pytest.approx(200 * np.log10(2))


def test_a_player_who_won_every_game_has_a_finite_rating_by_virtual_draws_alone() -> None:
    won = games("a", "b", won=10)
    with pytest.raises(InputError, match="never took a point from the others"):
        rate(won, virtual_draws=0)
    best, worst = rate(won, virtual_draws=1)
    assert best.elo.value - worst.elo.value == pytest.approx(400 * np.log10(10.5 / 0.5))


def test_a_player_who_won_or_lost_everything_has_no_interval() -> None:
    found = rate(games("a", "b", won=10) + games("b", "c", won=4, lost=6))
    assert [(r.player, r.elo.low is None, r.elo.reason) for r in found] == [
        ("a", True, "no interval for who won every game"), ("c", False, ""), ("b", False, ""),
    ]  # fmt: skip


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    rng, truth, covered = np.random.default_rng(0), np.log(2) / 2 * ELO, 0
    for _ in range(200):
        won = int(rng.binomial(60, 2 / 3))
        [a] = [r for r in rate(games("a", "b", won=won, lost=60 - won)) if r.player == "a"]
        assert a.elo.low < a.elo.value < a.elo.high
        covered += a.elo.low <= truth <= a.elo.high
    assert 182 <= covered <= 198


def test_more_games_make_narrower_intervals() -> None:
    few, many = (width(rate(games("a", "b", 6 * n, 2 * n, 4 * n))[0]) for n in (1, 100))
    assert few > 5 * many


def test_six_games_by_hand() -> None:
    # a chain of pairs, each 2 to 1: each difference is ln 2, and the three strengths add up to 0
    six = games("a", "b", won=2, lost=1) + games("b", "c", won=2, lost=1)
    assert [(r.player, r.games, r.elo.value) for r in rate(six, virtual_draws=0)] == [
        ("a", 3, pytest.approx(400 * np.log10(2))), ("b", 6, pytest.approx(0)),
        ("c", 3, pytest.approx(-400 * np.log10(2))),
    ]  # fmt: skip


def test_games_of_one_cluster_count_as_one() -> None:
    played = games("a", "b", won=12, lost=12)
    [a, _] = rate(played, clusters=["q"] * 24)
    assert (a.elo.low, a.elo.high, a.elo.units) == (None, None, 1)
    # four clusters of six equal games are four games, not 24
    ordered = rate(played, clusters=[str(number // 6) for number in range(24)])
    alone = rate(played, clusters=[str(number) for number in range(24)])
    assert width(ordered[0]) > 2 * width(alone[0])
    assert rate(played)[0].elo == alone[0].elo


def test_what_cannot_be_rated_is_refused() -> None:
    with pytest.raises(InputError, match="no game to rate"):
        rate([])
    with pytest.raises(InputError, match=r"a score of 0.7 of a against b; needed: 0, 0.5 or 1"):
        rate([Game("a", "b", 0.7)])
    with pytest.raises(InputError, match="no chain of games connects c, d with a"):
        rate(games("a", "b", 1, 1, 1) + games("c", "d", 1, 1, 1))
