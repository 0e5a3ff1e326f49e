"""Matches between scripted players and policies over tokens and moves, and their ratings."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lmgym.apps.games.ladder import play_games
from lmgym.apps.games.self_play.matches import round_robin
from lmgym.apps.games.self_play.two_players import find_two_player_game, make_start
from lmgym.environments.players import ActionRequest, GeneratorPlayer
from lmgym.environments.protocol import Observation
from lmgym.errors import InputError
from lmgym.generation.actions import ActionPolicy
from lmgym.generation.local_generation import LocalGenerator, load_causal
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
    players = {side: GeneratorPlayer(scripted("random")) for side in ("first", "second")}
    returns = play_games([GAME.make() for _ in range(30)], range(30), players)
    assert {of_game["first"] + of_game["second"] for of_game in returns} == {0.0}
    assert {of_game["first"] for of_game in returns} >= {-1.0, 1.0}


def test_an_untrained_policy_over_the_listed_moves_plays_as_the_random_player(tmp_path: Path) -> None:
    policy, chance = load_causal(str(make_start(GAME.name, tmp_path / "start"))), scripted("random")
    assert isinstance(policy, LocalGenerator)
    games, sampling = range(400), Sampling(GAME.max_new_tokens)
    first = {}
    for name, player in {"random": chance, "actions": ActionPolicy(policy), "tokens": policy}.items():
        players = {GAME.sides[0]: GeneratorPlayer(player, sampling), GAME.sides[1]: GeneratorPlayer(chance, sampling)}
        played = play_games([GAME.make() for _ in games], games, players)
        first[name] = np.mean([one[GAME.sides[0]] for one in played])
    assert first["actions"] == pytest.approx(first["random"], abs=0.15)
    assert first["tokens"] == pytest.approx(-1, abs=0.05), "what it says is no move"


def test_a_policy_over_moves_refuses_what_it_cannot_choose_from(tmp_path: Path) -> None:
    policy = load_causal(str(make_start("tic_tac_toe", tmp_path / "start")))
    assert isinstance(policy, LocalGenerator)
    player = GeneratorPlayer(ActionPolicy(policy), Sampling(2))

    def ask(text: str, actions: tuple[str, ...] = ()) -> None:
        player.act([ActionRequest(GAME.make(), "first", Observation(text, actions), 0)])

    with pytest.raises(InputError, match="an observation lists no actions; needed"):
        ask("free cells")
    with pytest.raises(InputError, match="max_new_tokens is 2; the model reads 1024"):
        ask("free " * 2000, ("1", "2"))
