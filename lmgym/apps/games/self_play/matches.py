"""Matches between players of a game: every pair, either side, the same seeds; and the ratings that follow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import combinations

from lmgym.apps.games.self_play.two_players import TwoPlayerGame
from lmgym.environments.protocol import Environment
from lmgym.environments.rollout_engine import Actor, replies_of
from lmgym.generation.protocol import Sampling
from lmgym.scoring.ratings import Game

TOGETHER = 256
"""games that are played at a time"""


def round_robin(
    game: TwoPlayerGame, names: Sequence[str], load: Callable[[str], Actor], games: int, sampling: Sampling,
    progress: Callable[[str, str], None] = lambda first, second: None,
) -> list[Game]:  # fmt: skip
    """`games` games of each pair of players, half of them on either side. Two players are loaded at a time.

    The seed of a game follows from `sampling.seed` and its number, and that of a reply from the game's, its turn and
    its side: a pair's games do not depend on the other players.
    """
    results: list[Game] = []
    loaded: dict[str, Actor] = {}
    for first, second in combinations(names, 2):
        progress(first, second)
        loaded = {name: loaded.get(name) or load(name) for name in (first, second)}
        for one, other in ((first, second), (second, first)):
            players = dict(zip(game.sides, (loaded[one], loaded[other]), strict=True))
            for begin in range(0, games // 2, TOGETHER):
                seeds = range(begin, min(begin + TOGETHER, games // 2))
                returns = play_games([game.make() for _ in seeds], seeds, players, sampling)
                results += [Game(one, other, _score(of_game[game.sides[0]])) for of_game in returns]
    return results


def _score(first_return: float) -> float:
    return 0.5 if first_return == 0 else float(first_return > 0)


def play_games(
    environments: Sequence[Environment], seeds: Sequence[int], players: Mapping[str, Actor], sampling: Sampling
) -> list[dict[str, float]]:
    """Play each environment to its end, all agents by their players: the return of each agent, by game."""
    returns: list[dict[str, float]] = [dict.fromkeys(players, 0.0) for _ in environments]
    shown = {i: env.reset({}, seed) for i, (env, seed) in enumerate(zip(environments, seeds, strict=True))}
    turn = 0
    while shown:
        said: dict[int, dict[str, str]] = {i: {} for i in shown}
        for agent, player in players.items():
            acting = [i for i in shown if agent in shown[i]]
            if acting:
                seeded = replace(sampling, seed=tuple(_seed(sampling, seeds[i], turn, agent) for i in acting))
                replies = replies_of(player, [shown[i][agent] for i in acting], seeded)
                for i, reply in zip(acting, replies, strict=True):
                    said[i][agent] = reply
        results = {i: environments[i].step(actions) for i, actions in said.items()}
        for i, result in results.items():
            for agent, reward in result.rewards.items():
                returns[i][agent] += reward
        shown = {i: r.observations for i, r in results.items() if not (r.terminated or r.truncated)}
        turn += 1
    return returns


def _seed(sampling: Sampling, game: int, turn: int, agent: str) -> int:
    words = f"{sampling.seed} {game} {turn} {agent}"
    return int.from_bytes(blake2b(words.encode(), digest_size=8).digest(), "big") >> 1
