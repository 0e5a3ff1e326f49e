"""The page of an agreement with people: one file that needs no network."""

from collections.abc import Mapping
from typing import Any

from lmgym.apps.audit.agree.agree_tables import (
    AGAINST_COLUMNS,
    SPLIT_COLUMNS,
    against_rows,
    coefficient_rows,
    coverage_line,
    rater_columns,
    rater_rows,
    split_rows,
    test_line,
    votes_line,
)
from lmgym.apps.audit.agree.agreement import MAJORITY, Agreement
from lmgym.apps.audit.agree.judging import Judgements
from lmgym.apps.audit.agree.labels import Labels
from lmgym.report.charts import bars, histogram
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table
from lmgym.report.samples import shown
from lmgym.statistics import Estimate, notes
from lmgym.text import to_transcript

LONGEST = 700  # characters of a text that is shown
MOST_DIFFERENCES = 12
MOST_RATERS = 50
FEW = 12  # raters, of whom a table says all
KINDS = {None: ("good", "done"), 0: ("good", "passes"), 1: ("bad", "fails"), 3: ("warn", "undecided")}


def agreement_page(name: str, labels: Labels, judged: Judgements, found: Agreement, results: Mapping[str, Any]) -> str:
    """The figures as HTML, with the rows on which the judge and the raters differ most."""
    decision = results["decision"]
    kind, words = KINDS[decision["exit_code"] if decision else None]
    sections = [
        Section(
            "agreement", "Agreement", [*_charts(found, labels), _coefficients(found, labels), _splits(found, labels)]
        ),
        Section("test", "The judge as one more rater", _test(found, labels)),
        Section("raters", "Raters", _raters(found, labels)),
        Section("differences", "Largest differences", [_differences(labels, judged, found)]),
        Section(
            "reading", "What was said, and how it was read", [_said(labels, results), _notes(labels, judged, found)]
        ),
    ]
    return render(
        title=shown(f"Agreement of {name} with people"),
        badge={"kind": kind, "words": words},
        lead=_lead(name, labels, judged, found, results),
        cards=_cards(labels, found),
        sections=[section for section in sections if any(p.table or p.chart or p.pairs for p in section.panels)],
    )


def _lead(name: str, labels: Labels, judged: Judgements, found: Agreement, results: Mapping[str, Any]) -> list[str]:
    lines = [results["decision"]["words"]] if results["decision"] else []
    lines += [votes_line(labels, results), f"{name}: {coverage_line(labels, judged, found)}"]
    return [shown(line) for line in (*lines, *found.warnings)]


def _card(label: str, estimate: Estimate, spec: str, about: str) -> Card:
    value = "–" if estimate.value is None else f"{estimate.value:{spec}}"
    return Card(label, value, note=f"95%: {estimate.interval(spec)}" if estimate.low is not None else "", about=about)


def _cards(labels: Labels, found: Agreement) -> list[Card]:
    middle = labels.levels.middle
    about = f"Cohen's kappa of the judge with the raters' {middle}: 1 is the same on every row, 0 what chance gives"
    cards = [_card(f"kappa, judge and {middle}", found.figure(MAJORITY), ".2f", about)]
    about = "Krippendorff's alpha of the raters among themselves, in the same units"
    cards.append(_card("alpha, raters", found.figure("alpha"), ".2f", about))
    if found.test and found.test.passes is not None:
        about = "the share of raters whose place the judge may take; the alternative annotator test passes from .5"
        cards.append(_card("winning rate", found.test.winning_rate, ".2f", about))
        about = "how often the judge is as near to the other raters as a rater is, or nearer"
        cards.append(_card("advantage probability", found.test.advantage, ".2f", about))
    cards.append(_card("coverage, %", found.coverage.times(100), ".1f", "rows on which the judge gave a verdict"))
    return cards


def _charts(found: Agreement, labels: Labels) -> list[Panel]:
    def chart(id: str, title: str, about: str, rows: list[tuple[str, Estimate]], y: str, base: float | None) -> Panel:
        known = [(label, e.value, e.low, e.high) for label, e in rows if e.value is not None]
        return Panel(id, title, f"{about} 95% intervals over {labels.unit}s.", chart=bars(known, y, base))

    kappas = [(one.short, one.estimate) for one in found.figures]
    accuracy = [(one.name, one.accuracy.times(100)) for one in found.splits]
    panels = [chart("kappas", "Coefficients", "0 is what chance gives.", kappas, "agreement beyond chance", 0.0)]
    about = f"The judge against the raters' {labels.levels.middle}, by how far raters agree."
    return [*panels, chart("accuracies", "Accuracy where people agree", about, accuracy, "accuracy, %", None)]


def _coefficients(found: Agreement, labels: Labels) -> Panel:
    table = Table(["coefficient", "of", "value (95%)", "rows"], coefficient_rows(found), frozenset({2, 3}))
    about = " ".join(notes([one.estimate for one in found.figures], labels.unit))
    return Panel("coefficients", "Coefficients", about, table=table, wide=True)


def _splits(found: Agreement, labels: Labels) -> Panel:
    table = Table(SPLIT_COLUMNS, split_rows(found), frozenset({1, 2, 3, 4}))
    about = (
        f"Accuracy is against the raters' {labels.levels.middle}; rows without one, and without a verdict, have none."
    )
    return Panel("splits", "Where people agree, and where they do not", about, table=table, wide=True)


def _test(found: Agreement, labels: Labels) -> list[Panel]:
    if not found.test or not found.test.raters:
        return []
    rows = against_rows(found.test, labels, MOST_RATERS)
    about = (
        f"{test_line(found.test)}. For each rater, judge and rater are compared with the same other raters on the "
        "same rows (Calderon et al. 2025, arXiv 2501.10970); p is one-sided, corrected over raters."
    )
    table = Table(AGAINST_COLUMNS, [[shown(cell) for cell in row] for row in rows], frozenset({1, 2, 3, 4}))
    sides = {"judge": [one.judge for one in found.test.raters], "rater": [one.own for one in found.test.raters]}
    near = "as near to the other raters, or nearer"
    about_chart = "Of each rater's rows, the share on which the judge is so, and on which the rater is."
    panels = (
        [Panel("near", "Judge and raters", about_chart, chart=histogram(sides, near, "raters"))]
        if len(rows) > FEW
        else []
    )
    return [
        *panels,
        Panel("against", _first_of(len(found.test.raters), "Against each rater"), about, table=table, wide=True),
    ]


def _first_of(number: int, title: str) -> str:
    return title if number <= MOST_RATERS else f"{title}: the {MOST_RATERS} of {number:,} with most rows"


def _raters(found: Agreement, labels: Labels) -> list[Panel]:
    if not found.raters:
        return []
    rows = [[shown(cell) for cell in row] for row in rater_rows(found.raters, labels, MOST_RATERS)]
    columns = rater_columns(labels)
    table = Table(columns, rows, frozenset(range(1, len(columns))))
    return [Panel("raters", _first_of(len(found.raters), "Each rater"), table=table, wide=True)]


def _differences(labels: Labels, judged: Judgements, found: Agreement) -> Panel:
    names = labels.levels.names
    votes: list[list[int]] = [[0] * len(names) for _ in labels.rows]
    for rating in labels.ratings:
        votes[rating.row][rating.level] += 1
    pairs = []
    for number in found.differences[:MOST_DIFFERENCES]:
        row, scores = labels.rows[number], judged.scores[number]
        said = ", ".join(f"{name} {n}" for name, n in zip(names, votes[number], strict=True) if n)
        heading = f"[line {row.line}] raters: {said}; judge: {names[judged.levels[number]]}"
        prompt = to_transcript(row.conversation)
        sides = [
            {"name": side, "text": shown(reply, LONGEST), "scores": [("score", score)], "notes": ""}
            for side, reply, score in zip(
                ("first", "second") if labels.are_pairs else ("reply",), row.replies, scores, strict=True
            )
        ]
        pairs.append({"prompt": _ends(f"{heading}\n\n{prompt}"), "sides": sides, "changes": []})
    about = f"The rows on which most raters contradict the judge, out of {len(found.differences):,} with a difference."
    return Panel("differences", "Judge and raters differ most", about, pairs=pairs, wide=True)


def _ends(text: str) -> str:
    """A text of at most LONGEST characters: its beginning and its end."""
    half = LONGEST // 2
    return shown(text if len(text) <= LONGEST else f"{text[:half]} … {text[-half:]}")


def _said(labels: Labels, results: Mapping[str, Any]) -> Panel:
    total, judged = (max(1, sum(results[name].values())) for name in ("votes", "verdicts"))
    rows = [
        [
            shown(name),
            f"{results['votes'][name]:,}",
            f"{100 * results['votes'][name] / total:.1f}",
            f"{results['verdicts'][name]:,}",
            f"{100 * results['verdicts'][name] / judged:.1f}",
        ]
        for name in labels.levels.names
    ]
    columns = ["", "votes of raters", "%", "verdicts of the judge", "%"]
    return Panel("said", "Votes and verdicts", table=Table(columns, rows, frozenset({1, 2, 3, 4})), wide=True)


def _notes(labels: Labels, judged: Judgements, found: Agreement) -> Panel:
    rows = [["rows", shown(line)] for line in labels.notes]
    rows += [["judge", shown(judged.how)], *(["figures", shown(line)] for line in found.notes)]
    return Panel("notes", "How it was read", table=Table(["", ""], rows), wide=True)
