"""A suite's score, as clembench computes it.

- %Played of a game is 100 times the share of episodes that were not aborted; Quality is the mean Main Score over the
  episodes that have one; both are rounded to 2 digits.
- A suite's %Played and Quality are the means over its games, rounded to 2; its score is their product / 100, rounded.
  Rounding follows Python's `round`.
- Episodes that are missing, because they failed or were never played, flatter a score: coverage says how many.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from lmgym.playpen.episodes import EpisodeScore

Z = 1.959964  # of an interval of 95%


@dataclass(frozen=True)
class GameScore:
    """A game's scores, in percent, with half the width of an interval of 95%; nan where nothing is known."""

    played: float
    quality: float
    episodes: int
    expected: int | None
    """episodes that the suite has; None if that is not known"""
    played_error: float = math.nan
    quality_error: float = math.nan

    @property
    def score(self) -> float:
        """%Played times Quality / 100; 0 if no episode has a Main Score."""
        return 0.0 if math.isnan(self.quality) else round(self.played * self.quality / 100, 2)


@dataclass(frozen=True)
class SuiteScore:
    """The scores of a suite; None if nothing of it was played."""

    score: float | None
    played: float | None
    quality: float | None
    games: Mapping[str, GameScore] = field(default_factory=dict)

    @property
    def coverage(self) -> float | None:
        """Share of the expected episodes that were played; None if the expected number is not known."""
        known = [game for game in self.games.values() if game.expected]
        expected = sum(game.expected or 0 for game in known)
        return sum(game.episodes for game in known) / expected if expected else None


def suite_score(episodes: Sequence[EpisodeScore], expected: Mapping[str, int] | None = None) -> SuiteScore:
    """The score of episodes; `expected` numbers of episodes by game, among which games may be that were not played."""
    by_game: dict[str, list[EpisodeScore]] = defaultdict(list)
    for episode in episodes:
        by_game[episode.game].append(episode)
    counts = expected or {}
    games = {name: _game_score(found, counts.get(name)) for name, found in sorted(by_game.items())}
    if not games:
        return SuiteScore(None, None, None, _missing(counts))
    played = round(fmean(game.played for game in games.values()), 2)
    qualities = [game.quality for game in games.values() if not math.isnan(game.quality)]
    quality = round(fmean(qualities), 2) if qualities else 0.0
    missing = _missing({name: number for name, number in counts.items() if name not in games})
    return SuiteScore(round(played * quality / 100, 2), played, quality, {**games, **missing})


def _missing(counts: Mapping[str, int]) -> dict[str, GameScore]:
    return {name: GameScore(math.nan, math.nan, 0, number) for name, number in counts.items()}


def _game_score(episodes: Sequence[EpisodeScore], expected: int | None) -> GameScore:
    number = len(episodes)
    share = fmean(not episode.aborted for episode in episodes)
    scores = [episode.main_score for episode in episodes if not math.isnan(episode.main_score)]
    quality = round(fmean(scores), 2) if scores else math.nan
    quality_error = Z * stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else math.nan
    return GameScore(round(100 * share, 2), quality, number, expected, 100 * _wilson_half(share, number), quality_error)


def _wilson_half(share: float, number: int) -> float:
    """Half the width of Wilson's interval of a share."""
    return Z / (1 + Z * Z / number) * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number * number))
