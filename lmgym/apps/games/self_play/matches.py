"""Matches between players of a game: every pair, either side, the same seeds; and the ratings that follow."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from lmgym.apps.games.self_play.two_players import TwoPlayerGame
from lmgym.environments.engine import hashed_seeds, play
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import Actor, GeneratorPlayer
from lmgym.environments.protocol import Environment
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling, seeds_of
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
    """Play each environment to its end, all agents by their players: the return of each agent, by game.

    Raises InputError if a game fails.
    """
    returns: list[dict[str, float]] = [dict.fromkeys(players, 0.0) for _ in environments]

    def add(episode: RunningEpisode) -> None:
        if episode.error:
            raise InputError(f"{episode.error}; needed: a game that every player can finish")
        for agent, reward in episode.result.rewards.items():
            returns[episode.index][agent] += reward

    seated = {agent: GeneratorPlayer(player, sampling) for agent, player in players.items()}
    [base] = seeds_of(sampling, 1)
    play(environments, [{}] * len(environments), seeds, seated, seed_of=hashed_seeds(base), watch=add)
    return returns
