"""A suite's score, as clembench computes it: clemscore of games, statscore of questions.

- %Played of a game is 100 times the share of episodes that were not aborted; Quality is the mean Main Score over the
  episodes that have one; both are rounded to 2 digits.
- A suite's %Played and Quality are the means over its games, rounded to 2; its score is their product / 100, rounded.
- Every step is rounded as numpy rounds, from which Python's `round` differs: 44.495 is 44.5, and not 44.49.
- Episodes that are missing, because they failed or were never played, flatter a score: coverage says how many.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from lmgym.apps.games.dialogue.scoring import ABORTED, MAIN_SCORE
from lmgym.errors import shown
from lmgym.statistics import NOTHING, Estimate, mean, share


@dataclass(frozen=True)
class EpisodeScore:
    """The scores of an episode that suites are made of."""

    game: str
    experiment: str
    aborted: bool
    main_score: float
    """0 to 100, of static EQ-Bench also below 0; nan if there is none"""
    game_id: str = ""
    """of the instance; empty if it is not known"""


def episode_score(content: Any, game: str, experiment: str, game_id: Any = "") -> EpisodeScore:
    """The score in the content of a scores.json; the names and the id are for one whose `meta` is empty.

    Raises ValueError for content without the scores, and for a Main Score that no clembench game gives.
    """
    scores = content.get("episode scores") if isinstance(content, Mapping) else None
    if not isinstance(scores, Mapping) or scores.get(ABORTED) not in (0, 1):
        raise ValueError(f"no episode scores with {ABORTED}, which is 0 or 1")
    aborted, main, meta = bool(scores[ABORTED]), scores.get(MAIN_SCORE), content.get("meta") or {}
    if not isinstance(meta, Mapping):
        raise ValueError(f"meta is {shown(meta)}; needed: an object")
    game, experiment = str(meta.get("game_name") or game), str(meta.get("experiment_name") or experiment)
    if aborted and (main is None or main != main):
        main = math.nan  # of an aborted game, which has no score
    elif isinstance(main, bool) or not isinstance(main, int | float) or not -math.inf < main <= 100:
        found = f"game {shown(game)}, {'aborted' if aborted else 'not aborted'}: {MAIN_SCORE} is {shown(main)}"
        raise ValueError(f"{found}; needed: a number up to 100")
    return EpisodeScore(game, experiment, aborted, float(main), str(meta.get("game_id", game_id)))


@dataclass(frozen=True)
class GameScore:
    """A game's scores, in percent, with their 95% intervals over episodes; nan where nothing is known."""

    played: float
    quality: float
    episodes: int
    expected: int | None
    """episodes that the suite has; None if that is not known"""
    played_estimate: Estimate = NOTHING
    quality_estimate: Estimate = NOTHING

    @property
    def score(self) -> float:
        """%Played times Quality / 100; 0 if no episode has a Main Score."""
        return 0.0 if math.isnan(self.quality) else _product(self.played, self.quality)


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
    played = _rounded(fmean(game.played for game in games.values()))
    qualities = [game.quality for game in games.values() if not math.isnan(game.quality)]
    quality = _rounded(fmean(qualities)) if qualities else 0.0
    return SuiteScore(_product(played, quality), played, quality, {**games, **missing})


def _game_score(episodes: Sequence[EpisodeScore], expected: int | None) -> GameScore:
    played = share([not episode.aborted for episode in episodes]).times(100)
    scores = [one.main_score for one in episodes if not math.isnan(one.main_score)]
    quality = mean(scores, bounds=(0, 100) if min(scores, default=0) >= 0 else None)
    assert played.value is not None, "a game has episodes"
    rounded = math.nan if quality.value is None else _rounded(quality.value)
    return GameScore(_rounded(played.value), rounded, len(episodes), expected, played, quality)


def _product(played: float, quality: float) -> float:
    return _rounded(played / 100 * quality)


def _rounded(value: float) -> float:
    return float(np.round(value, 2))
