"""Bradley-Terry ratings of players from the results of games between them, with intervals by the jackknife.

P(i beats j) = e^i / (e^i + e^j) (Bradley and Terry 1952); a draw counts as half a win of either. Elo's scale is
400 / ln 10 times as wide.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lmgym.errors import InputError
from lmgym.statistics import Estimate, jackknife

ELO = 400 / np.log(10)
"""points of Elo per unit of strength"""
STEPS, TOLERANCE = 200, 1e-10
OUTCOMES = (1.0, 0.5, 0.0)


@dataclass(frozen=True)
class Game:
    """The result of a game: 1 if the first player won, 0.5 for a draw, 0 if the second won."""

    first: str
    second: str
    score: float


@dataclass(frozen=True)
class Rating:
    """A player's strength in points of Elo, with a 95% interval over clusters, and its share of points in its games."""

    player: str
    elo: Estimate
    games: int
    score: float


def rate(games: Sequence[Game], virtual_draws: float = 1.0, clusters: Sequence[str] | None = None) -> list[Rating]:
    """The ratings of all players, the strongest first; they add up to 0.

    `virtual_draws` are added to the games of each pair that has met, which keeps the rating of a player finite who won
    or lost them all; 0 is the plain maximum of the likelihood. The interval is the jackknife's over games, or over
    `clusters`, one for each game, such as the question of a round; there is none for a player who won or lost
    everything. Raises InputError for no games, for another score than 0, 0.5 and 1,
    for players whom no chain of games connects, and, without virtual draws, where no maximum is finite.
    """
    names = sorted({name for game in games for name in (game.first, game.second)})
    counts = _counts(games, names)
    strengths = _strengths(counts, virtual_draws, names)
    kinds, times = _without_each(games, names, clusters)
    # without a cluster the plain maximum may not be finite
    without = _maximise(_wins(counts - kinds) + max(virtual_draws, 1e-3) / 2 * _met(counts))
    wins, as_first = _wins(counts), counts.sum(-1)
    played = as_first.sum(1) + as_first.sum(0)
    points = wins.sum(1) / played
    found = []
    for i, (name, strength, others) in enumerate(zip(names, strengths, without.T, strict=True)):
        elo = jackknife(float(strength), np.repeat(others, times), int(played[i])).times(ELO)
        if points[i] in (0, 1):
            every = "won" if points[i] else "lost"
            elo = replace(elo, low=None, high=None, reason=f"no interval for who {every} every game")
        found.append(Rating(name, elo, int(played[i]), float(points[i])))
    return sorted(found, key=lambda rating: -(rating.elo.value or 0.0))


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


def _without_each(
    games: Sequence[Game], names: Sequence[str], clusters: Sequence[str] | None
) -> tuple[np.ndarray, np.ndarray]:
    """([kinds, n, n, 3] games of each kind of cluster, [kinds] how many there are); a game is a cluster if None."""
    own: dict[object, list[Game]] = {}
    for game, cluster in zip(games, clusters or games, strict=True):
        own.setdefault(cluster, []).append(game)
    times = [len(listed) if clusters is None else 1 for listed in own.values()]
    counts = [_counts(listed[:1] if clusters is None else listed, names) for listed in own.values()]
    return np.stack(counts), np.array(times)


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
