"""The figures: coefficients, the judge as one more rater, accuracy by how far people agree, raters, and differences."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import scipy

from lmgym import __version__
from lmgym.apps.audit.agree.alternative_annotator import AlternativeAnnotator, alternative_annotator
from lmgym.apps.audit.agree.coefficients import (
    Codes,
    Ratings,
    cohen,
    fleiss,
    krippendorff_alpha,
    mean_of_pairs,
    over_units,
)
from lmgym.apps.audit.agree.judging import NO_VERDICT, Judgements
from lmgym.apps.audit.agree.labels import Labels
from lmgym.errors import one_line
from lmgym.runs.record import timestamp
from lmgym.statistics import NOTHING, Estimate, Floats, mean, share

SHARED_ROWS = 10  # of two raters, below which they have no kappa
MOST_PAIRS, PAIR_GROUPS = 60, 50  # pairs of raters in a mean of kappas, and groups of prompts for intervals of raters
MOST_NAMED = 3  # raters in a note
MOST_KAPPAS = 50  # raters, those with most votes, of whom each has a kappa with the judge
LEAST_SAME = 10  # votes of a rater who always says one thing
UNLIKELY = 0.001
MOST = 2 / 3  # of a row's votes
MAJORITY, RATERS = "majority", "raters"
SPLITS = ("all agree", "two thirds agree", "fewer agree", "one vote")


@dataclass(frozen=True)
class Figure:
    """A coefficient, with what it is of."""

    key: str
    name: str
    of: str
    estimate: Estimate
    short: str
    """for an axis"""


@dataclass(frozen=True)
class Split:
    """The judge on rows on which people agree as far as the name says."""

    name: str
    rows: int
    coverage: Estimate
    accuracy: Estimate
    """against the raters' majority, of rows that have one and a verdict"""
    with_raters: Estimate
    """share of raters who say what the judge says"""


@dataclass(frozen=True)
class RaterFigures:
    """One rater."""

    name: str
    votes: int
    first: float | None
    """share of the votes for one of two replies that are for the first in the row, whichever a rater was shown first"""
    kappa: Estimate
    """with the judge"""
    always: str
    """what the rater always says, though others do not; else empty"""


@dataclass(frozen=True)
class Agreement:
    """All figures."""

    figures: tuple[Figure, ...]
    coverage: Estimate
    splits: tuple[Split, ...]
    raters: tuple[RaterFigures, ...]
    test: AlternativeAnnotator | None
    differences: tuple[int, ...]
    """rows, the largest difference first"""
    notes: tuple[str, ...]
    """on figures that are not there"""
    warnings: tuple[str, ...]
    """on raters and verdicts that tell nothing"""

    def figure(self, key: str) -> Estimate:
        """A coefficient by its key."""
        return next(figure.estimate for figure in self.figures if figure.key == key)


def arrays(labels: Labels) -> Ratings:
    """The labels' votes as arrays; raters are numbered by their votes, the most first."""
    number = {name: place for place, name in enumerate(labels.raters)}
    columns = np.array([(r.row, number[r.rater], r.level) for r in labels.ratings], dtype=np.int64).reshape(-1, 3)
    units = np.unique([row.unit for row in labels.rows], return_inverse=True)[1]
    return Ratings(columns[:, 0], columns[:, 1], columns[:, 2], units, labels.levels)


def agreement(labels: Labels, judged: Judgements, epsilon: float) -> Agreement:
    """The figures of a judge beside the raters of a file."""
    ratings = arrays(labels)
    counts = ratings.counts
    central = central_levels(counts, labels)
    voted = counts.sum(1) > 0
    answered = judged.levels != NO_VERDICT
    figures, notes = _figures(labels, ratings, counts, central, judged)
    test = alternative_annotator(ratings, judged.levels, epsilon) if labels.has_raters else None
    raters = _raters(labels, ratings, judged.levels) if labels.has_raters else ()
    differences = _differences(counts, judged, labels)
    return Agreement(
        tuple(figures),
        share(answered[voted], ratings.units[voted]),
        tuple(_splits(counts, central, judged.levels, ratings.units)),
        raters,
        test,
        tuple(differences),
        tuple(notes),
        tuple(_warnings(labels, raters, judged.levels)),
    )


def central_levels(counts: Floats, labels: Labels) -> Codes:
    """The label that most raters give each row, of grades the median; NO_VERDICT where two levels share that place."""
    if labels.levels.are_grades:
        half = counts.sum(1, keepdims=True) / 2
        below = np.cumsum(counts, 1)
        low, high = (below < half - 1e-9).sum(1), (below <= half + 1e-9).sum(1)
        found = np.where(low == high, low, NO_VERDICT)
    else:
        ordered = np.sort(counts, 1)
        found = np.where(ordered[:, -1] > ordered[:, -2], counts.argmax(1), NO_VERDICT)
    return np.where(counts.sum(1) > 0, found, NO_VERDICT)


def _figures(
    labels: Labels, ratings: Ratings, counts: Floats, central: Codes, judged: Judgements
) -> tuple[list[Figure], list[str]]:
    levels, units, of = judged.levels, ratings.units, labels.levels
    kappa = "Cohen's kappa, quadratic weights" if of.are_grades else "Cohen's kappa"
    both = (central != NO_VERDICT) & (levels != NO_VERDICT)
    figures = [
        Figure(
            MAJORITY,
            kappa,
            f"judge, raters' {of.middle}",
            cohen(central[both], levels[both], units[both], of),
            "kappa: judge",
        )
    ]
    votes = levels[ratings.rows] != NO_VERDICT
    rows = ratings.rows[votes]
    weights = 1 / counts.sum(1)[rows]
    with_raters = cohen(ratings.levels[votes], levels[rows], units[rows], of, weights)
    with_raters = replace(with_raters, rows=len(np.unique(rows)))
    figures.append(Figure(RATERS, kappa, "judge, a rater (each row counts once)", with_raters, "kappa: judge, one"))
    notes = []
    pairs, used, shared = (
        mean_of_pairs(ratings, SHARED_ROWS, MOST_PAIRS, PAIR_GROUPS) if labels.has_raters else (NOTHING, 0, 0)
    )
    if used:
        figures.append(
            Figure("pairs", kappa, f"two raters, mean of {used:,} pair{'s' * (used > 1)}", pairs, "kappa: raters")
        )
        if shared > MOST_PAIRS:
            notes.append(
                f"Of {shared:,} pairs of raters with {SHARED_ROWS} common rows the kappas are of {used:,} at random"
            )
    people, why = fleiss(counts[counts.sum(1) > 0], units[counts.sum(1) > 0])
    figures += [Figure("fleiss", "Fleiss' kappa", "raters", people, "Fleiss: raters")] if not why else []
    notes += [why] if why else []
    name = f"Krippendorff's alpha, {'ordinal' if of.are_grades else 'nominal'}"
    figures.append(Figure("alpha", name, "raters", krippendorff_alpha(counts, units, of), "alpha: raters"))
    with_judge = counts.copy()
    there = levels != NO_VERDICT
    with_judge[np.nonzero(there)[0], levels[there]] += 1
    figures.append(
        Figure(
            "alpha_with_judge", name, "raters and judge", krippendorff_alpha(with_judge, units, of), "alpha: with judge"
        )
    )
    if of.are_ordered:
        figures.append(_rank_correlation(counts, judged, units, labels))
    return figures, notes


def _rank_correlation(counts: Floats, judged: Judgements, units: Codes, labels: Labels) -> Figure:
    there = (judged.levels != NO_VERDICT) & (counts.sum(1) > 0)
    grades = (counts[there] @ np.asarray(labels.levels.values)) / counts[there].sum(1)
    scores = np.array([scores[0] for scores, kept in zip(judged.scores, there, strict=True) if kept])

    def spearman(kept: np.ndarray) -> float | None:
        if min(len(np.unique(grades[kept])), len(np.unique(scores[kept]))) < 2:
            return None
        return float(scipy.stats.spearmanr(grades[kept], scores[kept]).statistic)

    found = over_units(spearman, units[there])
    return Figure("spearman", "Spearman's rank correlation", "scores, raters' mean", found, "rank correlation")


def _splits(counts: Floats, central: Codes, levels: Codes, units: Codes) -> list[Split]:
    votes = counts.sum(1)
    most = counts.max(1) / np.maximum(votes, 1)
    kinds = [most == 1, (most < 1) & (most >= MOST - 1e-9), most < MOST - 1e-9]
    chosen = [kind & (votes > 1) for kind in kinds] + [votes == 1]
    found = []
    for name, rows in zip(SPLITS, chosen, strict=True):
        if rows.any():
            there = rows & (levels != NO_VERDICT)
            decided = there & (central != NO_VERDICT)
            said = counts[there, levels[there]] / votes[there]
            found.append(
                Split(
                    name,
                    int(rows.sum()),
                    share(levels[rows] != NO_VERDICT, units[rows]),
                    share(levels[decided] == central[decided], units[decided]),
                    mean(said, units[there], (0, 1)),
                )
            )
    return found


def _raters(labels: Labels, ratings: Ratings, levels: Codes) -> tuple[RaterFigures, ...]:
    found = []
    first: dict[str, list[bool]] = {}
    for rating in labels.ratings:
        if rating.shown_first is not None:
            first.setdefault(rating.rater, []).append(rating.shown_first)
    every = np.bincount(ratings.levels, minlength=len(labels.levels.names))
    for number, name in enumerate(labels.raters):
        own = ratings.raters == number
        rows, said = ratings.rows[own], ratings.levels[own]
        there = levels[rows] != NO_VERDICT
        kappa = NOTHING
        if number < MOST_KAPPAS and there.sum() >= SHARED_ROWS:
            units = ratings.units[rows[there]]
            kappa = cohen(said[there], levels[rows[there]], units, labels.levels, groups=PAIR_GROUPS)
        sides = first.get(name)
        always = _always(said, sides, every, labels)
        found.append(RaterFigures(name, len(said), float(np.mean(sides)) if sides else None, kappa, always))
    return tuple(found)


def _always(said: Codes, first: list[bool] | None, every: Codes, labels: Labels) -> str:
    """The one thing that a rater always says, if that is unlikely (UNLIKELY) of one who says it as often as others."""
    if len(said) < LEAST_SAME:
        return ""
    if labels.are_pairs and first and len(first) == len(said) and len(set(first)) == 1:
        return "the first reply of a row" if first[0] else "the second reply of a row"
    if len(set(said.tolist())) > 1:
        return ""
    others = every - np.bincount(said, minlength=len(every))
    likely = others[said[0]] / max(1, others.sum())
    return labels.levels.names[said[0]] if likely ** len(said) < UNLIKELY else ""


def _differences(counts: Floats, judged: Judgements, labels: Labels) -> list[int]:
    """Rows whose raters and judge differ, the largest difference first.

    It is the mean distance of the raters' levels from the judge's, of verdicts on two replies with a tie half way.
    """
    values = np.asarray(labels.levels.values)
    is_far = labels.levels.are_ordered or labels.are_pairs
    votes = counts.sum(1)
    found = []
    for row, level in enumerate(judged.levels):
        if level != NO_VERDICT and votes[row]:
            distances = np.abs(values - values[level]) if is_far else (np.arange(len(values)) != level).astype(float)
            far = float(counts[row] @ distances / votes[row])
            scores = judged.scores[row]
            sure = abs(scores[0] - scores[1]) if len(scores) == 2 else 0.0
            found.append((-far, -float(votes[row]), -sure, row))
    return [row for far, _, _, row in sorted(found) if far < 0]


def _warnings(labels: Labels, raters: tuple[RaterFigures, ...], levels: Codes) -> list[str]:
    found = []
    if same := [rater for rater in raters if rater.always]:
        said_by = "; ".join(f"{one_line(one.name, 30)}: {one.always}, {one.votes:,} times" for one in same[:MOST_NAMED])
        more = f"; and {len(same) - MOST_NAMED:,} more" if len(same) > MOST_NAMED else ""
        found.append(
            f"{len(same):,} rater{'s' * (len(same) > 1)} always said one thing, which tells nothing of the rows "
            f"({said_by}{more}); they count in all figures: leave them out of the file if they did not read"
        )
    said = set(levels[levels != NO_VERDICT].tolist())
    if len(said) == 1:
        found.append(f"The judge says {labels.levels.names[said.pop()]} of every row: agreement beyond chance is 0")
    if labels.has_raters and len(labels.raters) == 1:
        found.append(
            "One rater: nothing says how far people agree among themselves, or whether the judge is as good as one"
        )
    if not labels.has_raters:
        found.append(
            "Votes have no raters (rows have unequal numbers of them): no kappas of single raters, and no alternative "
            "annotator test; a rater's name beside each vote would allow both"
        )
    return found


def decision(estimate: Estimate, at_least: float) -> tuple[str, int]:
    """(words, exit code): 0 if the lower limit is at least the bound, 1 if the upper one is below, else 3."""
    about = f"--at_least {at_least:g}: kappa {estimate:.3f}"
    if estimate.low is not None and estimate.low >= at_least:
        return f"{about}: passes, the lower limit is not below {at_least:g}", 0
    if estimate.high is not None and estimate.high < at_least:
        return f"{about}: fails, the upper limit is below {at_least:g}", 1
    why = f" ({estimate.reason})" if estimate.reason else ""
    return f"{about}: undecided{why}: {at_least:g} lies within the interval; more labelled rows would decide", UNDECIDED


UNDECIDED = 3
Content = dict[str, Any]


def content(
    labels: Labels, judged: Judgements, found: Agreement, path: str, epsilon: float, decided: tuple[str, int] | None
) -> Content:
    """The content of agreement.json."""
    names = labels.levels.names
    ratings = arrays(labels)
    every = np.bincount(ratings.levels, minlength=len(names))
    return {
        "judge": path,
        "read": labels.notes,
        "kind": "pairs" if labels.are_pairs else "replies",
        "rows": len(labels.rows),
        "raters": len(labels.raters) if labels.has_raters else None,
        "votes": dict(zip(names, every.tolist(), strict=True)),
        "left_out": labels.reasons,
        "scores_become_verdicts": judged.how,
        "verdicts": {name: int((judged.levels == place).sum()) for place, name in enumerate(names)},
        "without_verdict": dict(judged.failed.most_common()),
        "coverage": asdict(found.coverage),
        "coefficients": {figure.key: asdict(figure) for figure in found.figures},
        "where_people_agree": [asdict(split) for split in found.splits],
        "alternative_annotator_test": _test(found.test, labels.raters) if found.test else None,
        "epsilon": epsilon,
        "by_rater": [asdict(rater) for rater in found.raters],
        "decision": None if decided is None else {"words": decided[0], "exit_code": decided[1]},
        "notes": [*found.notes, *found.warnings],
        "lmgym": __version__,
        "written": timestamp(),
    }


def _test(test: AlternativeAnnotator, names: list[str]) -> Mapping[str, Any]:
    return {
        "epsilon": test.epsilon,
        "passes": test.passes,
        "winning_rate": asdict(test.winning_rate),
        "advantage_probability": asdict(test.advantage),
        "raters_with_too_few_rows": test.left_out,
        "raters": [asdict(one) | {"rater": names[one.rater], "wins": one.wins} for one in test.raters],
    }
