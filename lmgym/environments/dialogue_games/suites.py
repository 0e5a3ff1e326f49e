"""A suite's score, as clembench computes it: clemscore of games, statscore of questions.

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
from typing import Any

from lmgym.environments.dialogue_games.scoring import ABORTED, MAIN_SCORE

Z = 1.959964  # of an interval of 95%


@dataclass(frozen=True)
class EpisodeScore:
    """The scores of an episode that suites are made of."""

    game: str
    experiment: str
    aborted: bool
    main_score: float
    """0 to 100; nan if there is none"""


def episode_score(content: Any, game: str, experiment: str) -> EpisodeScore:
    """The score in the content of a scores.json; the names are for one whose `meta` is empty.

    Raises ValueError for content without the scores.
    """
    scores = content.get("episode scores") if isinstance(content, Mapping) else None
    if not isinstance(scores, Mapping) or scores.get(ABORTED) not in (0, 1):
        raise ValueError(f"no episode scores with {ABORTED}, which is 0 or 1")
    main = scores.get(MAIN_SCORE)
    if main is None:
        main = math.nan
    if not isinstance(main, int | float):
        raise ValueError(f"{MAIN_SCORE} is {main!r}; needed: a number")
    meta = content.get("meta") or {}
    names = str(meta.get("game_name") or game), str(meta.get("experiment_name") or experiment)
    return EpisodeScore(*names, bool(scores[ABORTED]), float(main))


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
    missing = {name: GameScore(math.nan, math.nan, 0, number) for name, number in counts.items() if name not in games}
    if not games:
        return SuiteScore(None, None, None, missing)
    played = round(fmean(game.played for game in games.values()), 2)
    qualities = [game.quality for game in games.values() if not math.isnan(game.quality)]
    quality = round(fmean(qualities), 2) if qualities else 0.0
    return SuiteScore(round(played * quality / 100, 2), played, quality, {**games, **missing})


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
