"""Matches between players of a game: every pair, either side, the same seeds; and the ratings that follow."""

from collections.abc import Callable, Sequence
from itertools import combinations

from lmgym.apps.games.ladder import TOGETHER, play_games
from lmgym.apps.games.self_play.two_players import TwoPlayerGame
from lmgym.environments.engine import hashed_seeds
from lmgym.environments.players import Actor, GeneratorPlayer
from lmgym.generation.protocol import Sampling, seeds_of
from lmgym.scoring.ratings import Game


def round_robin(
    game: TwoPlayerGame,
    names: Sequence[str],
    load: Callable[[str], Actor],
    games: int,
    sampling: Sampling,
    progress: Callable[[str, str], None] = lambda first, second: None,
) -> list[Game]:
    """`games` games of each pair of players, half of them on either side. Two players are loaded at a time.

    The seed of a game follows from `sampling.seed` and its number, and that of a reply from the game's, its turn and
    its side: a pair's games do not depend on the other players.
    """
    [base] = seeds_of(sampling, 1)
    results: list[Game] = []
    loaded: dict[str, Actor] = {}
    for first, second in combinations(names, 2):
        progress(first, second)
        loaded = {name: loaded.get(name) or load(name) for name in (first, second)}
        for one, other in ((first, second), (second, first)):
            seated = zip(game.sides, (loaded[one], loaded[other]), strict=True)
            players = {side: GeneratorPlayer(actor, sampling) for side, actor in seated}
            for begin in range(0, games // 2, TOGETHER):
                seeds = range(begin, min(begin + TOGETHER, games // 2))
                returns = play_games([game.make() for _ in seeds], seeds, players, hashed_seeds(base))
                results += [Game(one, other, _score(of_game[game.sides[0]])) for of_game in returns]
    return results


def _score(first_return: float) -> float:
    return 0.5 if first_return == 0 else float(first_return > 0)
