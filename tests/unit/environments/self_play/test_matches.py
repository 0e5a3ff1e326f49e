"""Matches between scripted players, and their ratings."""

from collections import Counter

from lmgym.environments.self_play.matches import play_games, round_robin
from lmgym.environments.self_play.two_players import find_two_player_game
from lmgym.generation.protocol import Generator, Sampling, ScriptedGenerator
from lmgym.scoring.ratings import rate

GAME = find_two_player_game("tic_tac_toe")


def scripted(name: str) -> Generator:
    return ScriptedGenerator(GAME.script(name))


def test_every_pair_plays_half_of_its_games_on_either_side() -> None:
    games = round_robin(GAME, ["random", "heuristic", "optimal"], scripted, 40, Sampling())
    counts = Counter((game.first, game.second) for game in games)
    assert len(counts) == 6
    assert set(counts.values()) == {20}
    assert [rating.player for rating in rate(games)] == ["optimal", "heuristic", "random"]


def test_the_games_of_a_pair_do_not_depend_on_who_else_plays() -> None:
    all_three = round_robin(GAME, ["random", "heuristic", "optimal"], scripted, 20, Sampling(seed=3))
    two = round_robin(GAME, ["random", "heuristic"], scripted, 20, Sampling(seed=3))
    assert two == [game for game in all_three if "optimal" not in (game.first, game.second)]
    assert two != round_robin(GAME, ["random", "heuristic"], scripted, 20, Sampling(seed=4))


def test_two_players_are_loaded_at_a_time() -> None:
    loaded: list[str] = []

    def load(name: str) -> Generator:
        loaded.append(name)
        return scripted(name)

    round_robin(GAME, ["random", "heuristic", "optimal"], load, 2, Sampling())
    assert loaded == ["random", "heuristic", "optimal", "heuristic"]


def test_the_returns_of_both_sides_add_up_to_0() -> None:
    players = {"first": scripted("random"), "second": scripted("random")}
    returns = play_games([GAME.make() for _ in range(30)], range(30), players, Sampling())
    assert {of_game["first"] + of_game["second"] for of_game in returns} == {0.0}
    assert {of_game["first"] for of_game in returns} >= {-1.0, 1.0}
