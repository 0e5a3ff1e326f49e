"""The games of the ladder: which random numbers a game draws, and what a measurement is the mean of."""

import subprocess
import sys

import numpy as np
import pytest

from lmgym.apps.games.alternating import SIDES
from lmgym.apps.games.ladder import TOGETHER, LadderGame, play_games, random_move
from lmgym.apps.games.self_play.two_players import TWO_PLAYER_GAMES
from lmgym.environments.players import ScriptPlayer
from lmgym.environments.protocol import Observation
from lmgym.errors import InputError

NIM = TWO_PLAYER_GAMES["nim"]
GAME = LadderGame(
    "nim", "", NIM.make, {"random": random_move}, agent=SIDES[0], opponents={SIDES[1]: NIM.script("random")}
)


def played_by_hand(seed: int) -> tuple[float, list[tuple[str, str]]]:
    """(the return, the moves) of two random players, by the streams that the recorded figures rest on."""
    game, own, theirs = NIM.make(), np.random.default_rng([1, seed]), np.random.default_rng([2, seed])
    seen, total, moves = game.reset({}, seed), 0.0, []
    while seen:
        [(agent, observation)] = seen.items()
        mine = agent == SIDES[0]
        move = random_move(game, observation, own) if mine else NIM.script("random")(observation.conversation, theirs)
        moves.append((agent, move))
        result = game.step({agent: move})
        total += result.rewards.get(SIDES[0], 0.0)
        seen = result.observations
    return total, moves


def test_a_game_draws_from_a_stream_of_its_seed_for_either_side() -> None:
    moves: list[tuple[str, str, float]] = []
    for seed in (0, 1, 2**40):
        moves.clear()
        total = GAME.play(random_move, seed, lambda *move: moves.append(move))
        assert (total, [move[:2] for move in moves]) == played_by_hand(seed)


def test_a_measurement_is_the_mean_of_the_games_one_by_one() -> None:
    episodes = TOGETHER + 3
    returns = [GAME.play(random_move, 5 + i) for i in range(episodes)]
    found = GAME.measure(random_move, episodes, 5)
    assert (found.mean, found.episodes) == (np.mean(returns), episodes)
    assert found.error == pytest.approx(np.std(returns, ddof=1) / episodes**0.5)


def test_a_game_that_fails_ends_the_measurement_with_its_seed() -> None:
    class Broken:
        def reset(self, task, seed):
            self.seed = seed
            return {"policy": Observation("?")}

        def step(self, actions):
            raise ValueError("no board")

    player = ScriptPlayer(lambda game, seen, rng: "x", lambda seed: [seed])
    with pytest.raises(InputError, match=r"^episode 0 \(seed 7\) of Broken, step 1: ValueError: no board"):
        play_games([Broken()], [7], {"policy": player})


def test_scripts_play_without_torch() -> None:
    code = (
        "import sys; from lmgym.apps.games import playing, tables; tables.find_game('shop'); "
        "playing.play_games('shop', 'optimal', 2, 0, 1.0, None); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
