"""The scorecard: figures of each scorer with intervals, what they lack, comparisons, and published figures beside."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lmgym import __version__
from lmgym.apps.audit.figures import compare, estimate
from lmgym.apps.audit.journal import RowScores, key_of
from lmgym.apps.audit.protocols import (
    PROTOCOLS,
    RM_BENCH,
    Measure,
    Observations,
    Scored,
    observe,
    own_rows,
    style_matrix,
)
from lmgym.apps.audit.suites import OWN, Item, Read
from lmgym.data.rejections import tally
from lmgym.errors import listed
from lmgym.runs.record import timestamp
from lmgym.statistics import Estimate, notes

COUNTS = {0.0: "each wrong", 0.5: "each a half", None: "one of k best being 1/k right"}
LARGEST = 8  # mistakes that are shown


@dataclass(frozen=True)
class ScoredBy:
    """The scores of a suite's rows by one scorer."""

    path: str
    fingerprint: str
    scores: Mapping[str, RowScores]
    """by row"""
    tie: float
    """what equal scores of a pair count"""


def scorecard(read: Read, scorers: Mapping[str, ScoredBy]) -> dict[str, Any]:
    """The content of scorecard.json: shares from 0 to 1."""
    outcomes, cards = {}, {}
    for name, scored in scorers.items():
        rows = scored_rows(read.items, scored)
        outcomes[name] = seen = observe(rows, read.suite.form, scored.tie)
        cards[name] = _card(read, scored, measures_of(read, seen), seen, rows)
    first = measures_of(read, next(iter(outcomes.values())))
    return {
        "suite": read.suite.name,
        "source": read.source,
        "rows": len(read.items),
        "lacks": list(first[0].lacks),
        "not_read": tally(read.rejections, len(read.items) + len(read.rejections)).line if read.rejections else "",
        "notes": read.notes,
        "scorers": cards,
        "comparisons": [asdict(difference) for difference in compare(outcomes, first)],
        "published": {"from": read.suite.anchors_from, "overall_percent": dict(read.suite.anchors)},
        "lmgym": __version__,
        "written": timestamp(),
    }


def measures_of(read: Read, seen: Observations) -> list[Measure]:
    """The figures of the suite, the overall one first."""
    return own_rows(seen) if read.suite.form == OWN else PROTOCOLS[read.suite.name](seen)


def scored_rows(items: Sequence[Item], scored: ScoredBy) -> list[Scored]:
    """The rows with their scores, none for one whose scoring failed."""
    rows = []
    for item in items:
        scores = scored.scores[key_of(item)].scores
        chosen, rejected = scores[: len(item.chosen)], scores[len(item.chosen) :]
        rows.append(Scored(item.subset, item.prompt, chosen, rejected, item.id))
    return rows


def _card(
    read: Read, scored: ScoredBy, measures: Sequence[Measure], seen: Observations, rows: Sequence[Scored]
) -> dict[str, Any]:
    found = [scored.scores[key_of(item)] for item in read.items]
    pairs = sum(len(item.chosen) * len(item.rejected) for item in read.items)
    replies = sum(len(item.chosen) + len(item.rejected) for item in read.items)
    seconds = sum(row.seconds for row in found)
    reasons = Counter(row.failed for row in found if row.failed)
    known = [row.truncated for row in found if row.truncated is not None]
    tied = sum(a == b for row in rows for a in row.chosen for b in row.rejected)
    card: dict[str, Any] = {
        "scorer": scored.path,
        "fingerprint": scored.fingerprint,
        "a_tie_of_a_pair_counts": None if read.suite.form == "rewardbench2" else scored.tie,
        "figures": [_figure(measure, seen) for measure in measures],
        "failed": {"rows": sum(reasons.values()), "reasons": dict(reasons.most_common())},
        "truncated": {"rows": sum(map(bool, known)), "replies": sum(known)} if known else None,
        "tied_pairs": tied,
        "pairs": pairs,
        "replies": replies,
        "seconds": seconds,
        "pairs_per_second": pairs / seconds if seconds else None,
        "replies_per_second": replies / seconds if seconds else None,
    }
    if read.suite.form == "styles":
        card["matrices"] = style_matrices(rows, scored.tie)
    return card


def _figure(measure: Measure, seen: Observations) -> dict[str, Any]:
    found = estimate(measure, seen)
    return {"name": measure.name, "kind": measure.kind, "lacks": list(measure.lacks), **asdict(found)}


def style_matrices(rows: Sequence[Scored], tie: float) -> dict[str, list[list[float]]]:
    """The 3 x 3 shares of RM-Bench by domain: rows are styles of the right reply, columns of the wrong one."""
    found = {}
    for domain, halves in RM_BENCH.items():
        means = [
            np.mean(
                [style_matrix(r.chosen, r.rejected, tie) if r.chosen else np.zeros((3, 3)) for r in of_half], axis=0
            )
            for half in halves
            if (of_half := [row for row in rows if row.subset == half])
        ]
        if means:
            found[domain] = np.mean(means, axis=0).tolist()
    return found


def estimate_of(figure: Mapping[str, Any]) -> Estimate:
    """The estimate in a figure of a scorecard, in percent."""
    names = ("value", "low", "high", "units", "rows", "reason")
    return Estimate(*(figure[name] for name in names)).times(100)


def named(figure: Mapping[str, Any]) -> str:
    """A figure's name; of one whose subsets are not all there, with what it lacks."""
    return f"{figure['name']} without {listed(figure['lacks'], 30)}" if figure["lacks"] else figure["name"]


def in_words(card: Mapping[str, Any]) -> list[str]:
    """The scorecard as lines to print."""
    lines = [*card["notes"]]
    if card["not_read"]:
        lines.append(card["not_read"])
    if card["lacks"]:
        lines.append(f"not here: {listed(card['lacks'], 30)}; figures with (part) are without them")
    estimates = []
    for name, of_scorer in card["scorers"].items():
        lines.append(f"{name}: {reading_of(of_scorer)}")
        for figure in of_scorer["figures"]:
            if figure["kind"] != "subset":
                estimates.append(estimate_of(figure))
                partly = " (part)" if figure["lacks"] else ""
                lines.append(f"  {figure['name'] + partly:24} {estimates[-1]:.1f}")
    lines += [difference_line(row) for row in card["comparisons"]]
    return lines + notes(estimates, "prompt")


def difference_line(row: Mapping[str, Any]) -> str:
    """`b - a, overall: +3.1 (+1.0 to +5.2), p = 0.004`."""
    return f"{row['second']} - {row['first']}, {row['figure']}: {estimate_of(row['estimate']):+.1f}, {p_words(row)}"


def p_words(row: Mapping[str, Any]) -> str:
    """The p-value, after Holm's correction over the whole table."""
    return "p < 0.001" if row["adjusted"] < 0.001 else f"p = {row['adjusted']:.3f}"


def reading_of(card: Mapping[str, Any]) -> str:
    """The number of rows that were scored, the speed, and the failed and the cut ones, in words."""
    parts = [f"{card['pairs']:,} pairs"]
    if card["pairs_per_second"]:
        parts.append(f"{card['pairs_per_second']:,.1f} pairs a second ({card['replies_per_second']:,.1f} replies)")
    if card["tied_pairs"]:
        parts.append(f"{card['tied_pairs']:,} tied, {COUNTS[card['a_tie_of_a_pair_counts']]}")
    if card["failed"]["rows"]:
        [(reason, _), *_] = card["failed"]["reasons"].items()
        parts.append(f"{card['failed']['rows']:,} rows failed and count as wrong ({reason})")
    if card["truncated"] and card["truncated"]["rows"]:  # None of a scorer that does not say
        parts.append(f"{card['truncated']['rows']:,} rows scored truncated")
    return ", ".join(parts)


def markdown(card: Mapping[str, Any]) -> str:
    """The table for a model card: sections in percent with their 95% intervals, and published figures beside."""
    names = list(card["scorers"])
    figures = {name: {f["name"]: f for f in of["figures"]} for name, of in card["scorers"].items()}
    rows = [
        f"| {named(figure)} | {' | '.join(f'{estimate_of(figures[name][key]):.1f}' for name in names)} |"
        for key, figure in figures[names[0]].items()
        if figure["kind"] != "subset"
    ]
    heads = " | ".join("accuracy, % (95% interval)" if len(names) == 1 else name for name in names)
    lines = [f"## Scorecard: {card['suite']}", "", f"| | {heads} |", f"|---|{'---|' * len(names)}", *rows, ""]
    lines += [f"{name}: {reading_of(of)}." for name, of in card["scorers"].items()]
    lines.append(
        f"{card['rows']:,} rows of {card['source']}; intervals over prompts. Measured with lmgym {card['lmgym']}."
    )
    if published := card["published"]["overall_percent"]:
        lines += ["", f"Published overall figures, from {card['published']['from']} (not measured here):", ""]
        lines += ["| model | overall, % (published) |", "|---|---|"]
        lines += [f"| {model} | {value:g} |" for model, value in published.items()]
    return "\n".join(lines) + "\n"


def mistakes(items: Sequence[Item], scored: ScoredBy, most: int = LARGEST) -> list[tuple[Item, float, float]]:
    """(row, score of its worst right reply, of its best wrong one): the largest mistakes first."""
    found = []
    for item in items:
        scores = scored.scores[key_of(item)].scores
        if scores:
            right, wrong = min(scores[: len(item.chosen)]), max(scores[len(item.chosen) :])
            found.append((item, right, wrong))
    return sorted((row for row in found if row[2] > row[1]), key=lambda row: row[1] - row[2])[:most]
