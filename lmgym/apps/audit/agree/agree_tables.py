"""The figures of `lmgym agree` as lines to print."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmgym.apps.audit.agree.agreement import Agreement, RaterFigures
from lmgym.apps.audit.agree.alternative_annotator import LEAST_RATERS, LEAST_ROWS, Against, AlternativeAnnotator
from lmgym.apps.audit.agree.judging import Judgements
from lmgym.apps.audit.agree.labels import Labels
from lmgym.errors import one_line
from lmgym.statistics import notes

SHOWN_RATERS = 20


def in_words(name: str, labels: Labels, judged: Judgements, found: Agreement, results: Mapping[str, Any]) -> list[str]:
    """All figures: how the file was read, coefficients, the test, accuracy, raters, notes, and the decision."""
    lines = [*labels.notes, votes_line(labels, results), f"{name}: {judged.how}", coverage_line(labels, judged, found)]
    lines += ["", *aligned([("coefficient", "of", "value (95% interval)", "rows"), *coefficient_rows(found)])]
    if found.test:
        lines += ["", test_line(found.test)]
        if found.test.raters:
            lines += aligned([AGAINST_COLUMNS, *against_rows(found.test, labels, SHOWN_RATERS)])
    lines += ["", *aligned([SPLIT_COLUMNS, *split_rows(found)])]
    if found.raters:
        lines += ["", *aligned([rater_columns(labels), *rater_rows(found.raters, labels, SHOWN_RATERS)])]
    figures = [figure.estimate for figure in found.figures]
    lines += ["", *notes(figures, labels.unit), *found.notes, *found.warnings]
    if results["decision"]:
        lines.append(results["decision"]["words"])
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, in columns of equal width."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def votes_line(labels: Labels, results: Mapping[str, Any]) -> str:
    """`40 rows, 3 raters, 118 votes: first 55.1%, tie 5.1%, second 39.8%; not used: 2 cannot say`."""
    votes = results["votes"]
    total = sum(votes.values())
    raters = f", {len(labels.raters):,} rater{'s' * (len(labels.raters) != 1)}" if labels.has_raters else ""
    shares = ", ".join(f"{one_line(name, 40)} {number / total:.1%}" for name, number in votes.items())
    left = "; ".join(f"{number:,} {reason}" for reason, number in results["left_out"].items())
    return f"{len(labels.rows):,} rows{raters}, {total:,} votes: {shares}" + (f"; not used: {left}" if left else "")


def coverage_line(labels: Labels, judged: Judgements, found: Agreement) -> str:
    """The share of rows with a verdict, and the reasons of the others."""
    rows = len(labels.rows)
    missing = sum(judged.failed.values())
    coverage = found.coverage.times(100)
    share = "" if coverage.value is None else f"{coverage.value:.1f}% ({coverage.interval('.1f')})"
    said = f"{rows - missing:,} of {rows:,} rows have a verdict: coverage {share}"
    if not missing:
        return said
    reasons = "; ".join(f"{number:,}: {one_line(reason)}" for reason, number in judged.failed.most_common(3))
    return f"{said}; all figures are of those ({reasons})"


def coefficient_rows(found: Agreement) -> list[tuple[str, str, str, str]]:
    """(name, what it is of, value with interval, rows)."""
    return [(one.name, one.of, f"{one.estimate:.3f}", f"{one.estimate.rows:,}") for one in found.figures]


def test_line(test: AlternativeAnnotator) -> str:
    """The result of the alternative annotator test."""
    head = f"the judge as one more rater (alternative annotator test, epsilon {test.epsilon:g})"
    left = f"; {test.left_out:,} raters with fewer than {LEAST_ROWS} rows are left out" if test.left_out else ""
    if len(test.raters) < LEAST_RATERS:
        enough = f"{len(test.raters)} rater{'s' * (len(test.raters) != 1)} with {LEAST_ROWS} rows that others rated too"
        return f"{head}: no result, {enough}; needed: {LEAST_RATERS}{left}"
    words = "passes" if test.passes else "does not pass"
    return (
        f"{head}: {words}, winning rate {test.winning_rate:.2f}, needed .5; "
        f"advantage probability {test.advantage:.3f}{left}"
    )


AGAINST_COLUMNS = ("rater", "rows", "judge as near or nearer", "rater as near or nearer", "p, adjusted", "judge")


def against_rows(test: AlternativeAnnotator, labels: Labels, most: int) -> list[tuple[str, ...]]:
    """The judge beside each rater, those with most rows first."""
    names = labels.raters

    def row(one: Against) -> tuple[str, ...]:
        wins = "wins" if one.wins else "does not win"
        return one_line(names[one.rater], 30), f"{one.rows:,}", f"{one.judge:.3f}", f"{one.own:.3f}", p_words(one), wins

    ordered = sorted(test.raters, key=lambda one: -one.rows)
    return [row(one) for one in ordered[:most]]


def p_words(one: Against) -> str:
    """The p-value after Benjamini and Yekutieli's correction."""
    return "< 0.001" if one.adjusted < 0.001 else f"{one.adjusted:.3f}"


SPLIT_COLUMNS = ("raters", "rows", "coverage, %", "accuracy, %", "raters who say the same, %")


def split_rows(found: Agreement) -> list[tuple[str, ...]]:
    """Accuracy where people agree, and where they do not."""
    return [
        (
            one.name,
            f"{one.rows:,}",
            f"{one.coverage.times(100):.1f}",
            f"{one.accuracy.times(100):.1f}",
            f"{one.with_raters.times(100):.1f}",
        )
        for one in found.splits
    ]


def rater_columns(labels: Labels) -> tuple[str, ...]:
    """The heads of `rater_rows`."""
    return ("rater", "votes", *(("first reply wins, %",) if labels.are_pairs else ()), "kappa with the judge")


def rater_rows(raters: Sequence[RaterFigures], labels: Labels, most: int) -> list[tuple[str, ...]]:
    """Each rater's votes and kappa with the judge, the first raters only."""
    return [
        (
            one_line(rater.name, 30),
            f"{rater.votes:,}",
            *(("–" if rater.first is None else f"{100 * rater.first:.1f}",) if labels.are_pairs else ()),
            f"{rater.kappa:.3f}",
        )
        for rater in raters[:most]
    ]
