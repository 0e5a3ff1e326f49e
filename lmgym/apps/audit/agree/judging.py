"""The judge's verdicts on the rows, as levels of the raters: signs of differences, and grades cut from scores.

Nothing is fitted to the labels but, with `shares`, to how often they have each level; a sentence says so then.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy

from lmgym.apps.audit.agree.coefficients import Codes
from lmgym.apps.audit.agree.labels import Labels, Row
from lmgym.apps.audit.agree.levels import Levels
from lmgym.apps.audit.journal import RowScores, key_of
from lmgym.apps.audit.suites import Item
from lmgym.data.rows import number_of
from lmgym.errors import InputError, listed, shown
from lmgym.scoring.named_scorers import JUDGE, RUBRIC, compares
from lmgym.statistics import Floats

NO_VERDICT = -1
AUTO, SCALE, SHARES = "auto", "scale", "shares"


@dataclass(frozen=True)
class Judgements:
    """The judge's verdicts on the rows."""

    levels: Codes
    """[rows]; NO_VERDICT where it said nothing"""
    scores: Sequence[tuple[float, ...]]
    """of the replies of each row; empty without a verdict"""
    how: str
    """how scores became levels, in words"""
    failed: Counter[str]
    """rows without a verdict, by reason"""


def item_of(row: Row) -> Item:
    """A row as scorers are given it; its first reply is no better than the second."""
    return Item("", str(row.line), row.conversation, row.replies[:1], row.replies[1:])


def check_judge(path: str, labels: Labels, cuts: str) -> None:
    """Raises InputError, before anything is scored, for a judge that cannot judge such rows, and for unfit cuts."""
    if labels.are_pairs:
        return
    if compares(path):
        raise InputError(
            f"{shown(path)} compares two replies, and the labels are of single ones ({listed(labels.levels.names)}); "
            "needed: judge:MODEL, a reward model or a function"
        )
    if not labels.levels.are_ordered:
        names = labels.levels.names
        raise InputError(
            f"the labels are {listed(names)}, of which nothing says the order; needed: --levels with all of them from "
            f"the worst to the best, such as --levels {','.join(names[:4])}"
        )
    if cuts not in (AUTO, SCALE, SHARES):
        _numbers(cuts, labels.levels)
    if cuts == SCALE and not labels.levels.are_numbers:
        raise InputError(f"--cuts scale needs grades that are numbers; the labels are {listed(labels.levels.names)}")


def judgements(labels: Labels, scores: Mapping[str, RowScores], path: str, cuts: str, tie_margin: float) -> Judgements:
    """The judge's levels of all rows, of whose scores some may have failed."""
    rows = [scores[key_of(item_of(row))] for row in labels.rows]
    failed = Counter(row.failed for row in rows if row.failed)
    there = np.array([not row.failed for row in rows])
    levels = np.full(len(rows), NO_VERDICT)
    given = np.array([row.scores for row in rows if not row.failed], dtype=np.float64)
    if labels.are_pairs:
        levels[there] = signs(given[:, 0] - given[:, 1], tie_margin)
        how = "the reply with the higher score is the better one; a tie: " + (
            f"scores at most {tie_margin:g} apart" if tie_margin else "equal scores"
        )
    else:
        levels[there], how = grades(given[:, 0], labels, path, cuts)
    return Judgements(levels, [row.scores for row in rows], how, failed)


def signs(differences: Floats, tie_margin: float) -> Codes:
    """Levels of verdicts on two replies: 0 where the first is better, 1 of a tie, 2 where the second is."""
    return np.where(np.abs(differences) <= tie_margin, 1, np.where(differences > 0, 0, 2))


def grades(scores: Floats, labels: Labels, path: str, cuts: str) -> tuple[Codes, str]:
    """(levels of the scores, how they were made)."""
    levels = labels.levels
    if cuts == AUTO:
        cuts = SCALE if levels.are_numbers and _scale_of(path) == (levels.values[0], levels.values[-1]) else SHARES
    if cuts == SCALE:
        values = np.asarray(levels.values)
        return np.abs(scores[:, None] - values[None, :]).argmin(1), "the grade that is nearest to the score"
    if cuts == SHARES:
        return by_shares(scores, shares_of(labels)), (
            "scores are cut so that the judge gives each label as often as the raters do: fitted to how often these "
            "labels occur, not to which row has which (--cuts with numbers fits nothing)"
        )
    numbers = _numbers(cuts, levels)
    return np.searchsorted(numbers, scores, side="right"), f"scores are cut at {listed(f'{n:g}' for n in numbers)}"


def shares_of(labels: Labels) -> Floats:
    """The share of each level among raters' votes, each row counting once."""
    counts = np.zeros((len(labels.rows), len(labels.levels.names)))
    for rating in labels.ratings:
        counts[rating.row, rating.level] += 1
    voted = counts[counts.sum(1) > 0]
    return (voted / voted.sum(1, keepdims=True)).mean(0)


def by_shares(scores: Floats, shares: Floats) -> Codes:
    """Levels that occur about as often as `shares` say, the lowest scores the lowest; equal scores have one level."""
    places = (scipy.stats.rankdata(scores) - 0.5) / len(scores)
    return np.minimum(np.searchsorted(np.cumsum(shares), places, side="left"), len(shares) - 1)


def _scale_of(path: str) -> tuple[float, float] | None:
    """The lowest and the highest grade of a model that judges; None of other scorers."""
    from lmgym.scoring.rubrics import read_spec

    return read_spec(path).scale if JUDGE.fullmatch(path) or RUBRIC.fullmatch(path) else None


def _numbers(cuts: str, levels: Levels) -> list[float]:
    numbers = [number_of(part) for part in cuts.split(",")]
    needed = len(levels.names) - 1
    rise = all(a < b for a, b in pairwise(numbers))
    if len(numbers) != needed or not rise or not all(map(math.isfinite, numbers)):
        raise InputError(
            f"--cuts {shown(cuts)}; needed: {AUTO}, {SCALE}, {SHARES}, or {needed} rising "
            f"number{'s' * (needed != 1)} between the levels {listed(levels.names)}"
        )
    return numbers
