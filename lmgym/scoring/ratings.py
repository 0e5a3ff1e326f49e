"""Bradley-Terry ratings of players from the results of games between them, with bootstrap intervals.

P(i beats j) = e^i / (e^i + e^j) (Bradley and Terry 1952); a draw counts as half a win of either. Elo's scale is
400 / ln 10 times as wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lmgym.errors import InputError

ELO = 400 / np.log(10)
"""points of Elo per unit of strength"""
STEPS, TOLERANCE = 200, 1e-10
BOOTSTRAPS = 1000
OUTCOMES = (1.0, 0.5, 0.0)


@dataclass(frozen=True)
class Game:
    """The result of a game: 1 if the first player won, 0.5 for a draw, 0 if the second won."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Rating:
    """A player's strength in points of Elo, with a 95% interval, and its share of points in its games."""

    player: str
    elo: float
    low: float
    high: float
    games: int
    score: float


def rate(
    games: Sequence[Game], virtual_draws: float = 1.0, bootstraps: int = BOOTSTRAPS, seed: int = 0,
    clusters: Sequence[str] | None = None,
) -> list[Rating]:  # fmt: skip
    """The ratings of all players, the strongest first; they add up to 0.

    `virtual_draws` are added to the games of each pair that has met, which keeps the rating of a player finite who won
    or lost them all; 0 is the plain maximum of the likelihood. The interval is that of the percentiles over samples of
    each pair's games, drawn with replacement; with `clusters`, one for each game, over samples of whole clusters, such
    as all rounds about one question. Raises InputError for no games, for another score than 0, 0.5 and 1, for players
    whom no chain of games connects, and, without virtual draws, where no maximum is finite.
    """
    names = sorted({name for game in games for name in (game.first, game.second)})
    counts = _counts(games, names)
    strengths = _strengths(counts, virtual_draws, names)
    rng = np.random.default_rng(seed)
    if clusters is None:
        drawn = _drawn_again(counts, bootstraps, rng)
    else:
        drawn = _clusters_drawn_again(games, names, clusters, bootstraps, rng)
    # a sample may lack a win that keeps the plain maximum finite
    samples = _maximise(_wins(drawn) + max(virtual_draws, 1e-3) / 2 * _met(counts))
    low, high = np.percentile(samples, [2.5, 97.5], axis=0) if bootstraps else (strengths, strengths)
    wins, as_first = _wins(counts), counts.sum(-1)
    played = as_first.sum(1) + as_first.sum(0)
    points = wins.sum(1) / played
    elo = (ELO * np.stack([strengths, low, high], 1)).tolist()
    found = [
        Rating(name, rating, least, most, int(n), float(share))
        for name, (rating, least, most), n, share in zip(names, elo, played, points, strict=True)
    ]
    return sorted(found, key=lambda rating: -rating.elo)


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Strengths [n] in nats that add up to 0, of wins [n, n] of player i over j; draws are half wins.

    Raises InputError where the likelihood has no finite maximum: the players fall into two sets, one of which never
    took a point from the other (Ford 1957).
    """
    if not _is_connected(wins):
        raise InputError(
            "some players never took a point from the others: their ratings are not finite; needed: more games, or "
            "virtual draws"
        )
    return _maximise(wins[None])[0]


def _counts(games: Sequence[Game], names: Sequence[str]) -> np.ndarray:
    """[n, n, 3]: how often player i won, drew, lost as the first against j."""
    if not games:
        raise InputError("no game to rate; needed: one or more")
    number = {name: i for i, name in enumerate(names)}
    counts = np.zeros((len(names), len(names), 3))
    for game in games:
        if game.score not in OUTCOMES:
            raise InputError(f"a score of {game.score} of {game.first} against {game.second}; needed: 0, 0.5 or 1")
        counts[number[game.first], number[game.second], OUTCOMES.index(game.score)] += 1
    return counts


def _strengths(counts: np.ndarray, virtual_draws: float, names: Sequence[str]) -> np.ndarray:
    met = _met(counts)
    if not _is_connected(met):
        apart = ", ".join(name for name, reached in zip(names, _reached(met > 0), strict=True) if not reached)
        raise InputError(f"no chain of games connects {apart} with {names[0]}; needed: games between them")
    return bradley_terry(_wins(counts) + virtual_draws / 2 * met)


def _wins(counts: np.ndarray) -> np.ndarray:
    """[..., n, n]: points of i against j, on either side, from counts [..., n, n, 3]."""
    as_first = counts[..., 0] + counts[..., 1] / 2
    as_second = counts[..., 2] + counts[..., 1] / 2
    return as_first + np.swapaxes(as_second, -1, -2)


def _met(counts: np.ndarray) -> np.ndarray:
    """[n, n]: 1 for pairs that have played."""
    played = counts.sum(-1)
    return ((played + played.T) > 0) * (1.0 - np.eye(len(played)))


def _is_connected(points: np.ndarray) -> bool:
    """True if each player is reached from each other along points that were taken."""
    return bool(_reached(points > 0).all() and _reached(points.T > 0).all())


def _reached(edges: np.ndarray) -> np.ndarray:
    """[n] bool: players that are reached from the first."""
    reached = np.arange(len(edges)) == 0
    for _ in edges:
        reached = reached | edges[reached].any(0)
    return reached


def _drawn_again(counts: np.ndarray, bootstraps: int, rng: np.random.Generator) -> np.ndarray:
    """[B, n, n, 3]: as many games of each ordered pair, drawn from its own with replacement."""
    played = counts.sum(-1)
    shares = counts / np.maximum(played, 1)[..., None]
    shares[played == 0] = (1.0, 0.0, 0.0)  # none of these are drawn
    return rng.multinomial(played.astype(np.int64), shares, size=(bootstraps, *played.shape)).astype(np.float64)


def _clusters_drawn_again(
    games: Sequence[Game], names: Sequence[str], clusters: Sequence[str], bootstraps: int, rng: np.random.Generator
) -> np.ndarray:
    """[B, n, n, 3]: the games of as many clusters, drawn with replacement."""
    own: dict[str, list[Game]] = {}
    for game, cluster in zip(games, clusters, strict=True):
        own.setdefault(cluster, []).append(game)
    counts = np.stack([_counts(listed, names) for listed in own.values()])
    drawn = rng.multinomial(len(own), np.full(len(own), 1 / len(own)), size=bootstraps)
    return np.tensordot(drawn.astype(np.float64), counts, 1)


def _maximise(wins: np.ndarray) -> np.ndarray:
    """Strengths [B, n] that maximise the likelihood of wins [B, n, n], by Newton's method with bounded steps."""
    games, players = wins + np.swapaxes(wins, 1, 2), wins.shape[-1]
    strengths = np.zeros(wins.shape[:2])
    for _ in range(STEPS):
        expected = 1 / (1 + np.exp(strengths[:, None, :] - strengths[:, :, None]))
        gradient = wins.sum(2) - (games * expected).sum(2)
        information = games * expected * (1 - expected)
        # a constant added to all strengths changes nothing: 1 / n in each entry fixes their sum
        hessian = np.eye(players) * information.sum(2)[:, :, None] - information + 1 / players
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        step /= np.maximum(1.0, np.abs(step).max(1, keepdims=True))
        strengths = strengths + step
        if np.abs(step).max(initial=0.0) < TOLERANCE:
            break
    return strengths - strengths.mean(1, keepdims=True)
