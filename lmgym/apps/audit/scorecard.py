"""The scorecard: figures of each scorer with intervals, what they lack, comparisons, and published figures beside."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, compress
from typing import Any

import numpy as np

from lmgym import __version__
from lmgym.apps.audit.figures import Difference, compare, estimate
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
from lmgym.statistics import NOTHING, Estimate, notes, share

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
    every = {name: scored_rows(read.items, scored) for name, scored in scorers.items()}
    for name, scored in scorers.items():
        outcomes[name] = seen = observe(every[name], read.suite.form, scored.tie)
        cards[name] = _card(read, scored, measures_of(read, seen), seen, every[name])
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
        "comparisons_where_both_answered": [
            asdict(difference) for difference in _where_both_answered(read, scorers, every)
        ],
        "published": {"from": read.suite.anchors_from, "overall_percent": dict(read.suite.anchors)},
        "lmgym": __version__,
        "written": timestamp(),
    }


def _where_both_answered(
    read: Read, scorers: Mapping[str, ScoredBy], every: Mapping[str, list[Scored]]
) -> list[Difference]:
    """The comparisons of each pair of scorers on the rows to which both gave scores; none if all have scores."""
    found: list[Difference] = []
    for first, second in combinations(scorers, 2):
        both = [bool(a.chosen and b.chosen) for a, b in zip(every[first], every[second], strict=True)]
        if not any(both) or all(both):
            continue
        pair = {
            name: observe(list(compress(every[name], both)), read.suite.form, scorers[name].tie)
            for name in (first, second)
        }
        found += compare(pair, measures_of(read, pair[first]))
    return found


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
        "answered": _answered(read, scored, rows),
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


def _answered(read: Read, scored: ScoredBy, rows: Sequence[Scored]) -> dict[str, Any] | None:
    """The number of rows with scores, and the figures of these alone; None if all have scores."""
    flags = [bool(row.chosen) for row in rows]
    if all(flags):
        return None
    seen = observe(list(compress(rows, flags)), read.suite.form, scored.tie)
    return {
        "rows": sum(flags),
        "coverage": asdict(share(flags, [row.prompt for row in rows])),
        "figures": [_figure(measure, seen) for measure in measures_of(read, seen)],
    }


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
        answered = answered_figures(of_scorer)
        for figure in of_scorer["figures"]:
            if figure["kind"] != "subset":
                estimates.append(estimate_of(figure))
                partly = " (part)" if figure["lacks"] else ""
                where = f"; where it answered {answered[figure['name']]:.1f}" if figure["name"] in answered else ""
                lines.append(f"  {figure['name'] + partly:24} {estimates[-1]:.1f}{where}")
    lines += [difference_line(row) for row in card["comparisons"]]
    lines += [f"{difference_line(row)}, rows that both answered" for row in card["comparisons_where_both_answered"]]
    return lines + notes(estimates, "prompt")


def answered_figures(of_scorer: Mapping[str, Any]) -> dict[str, Estimate]:
    """The figures in percent of the rows to which a scorer gave scores, by name; none if it gave all."""
    figures = of_scorer["answered"]["figures"] if of_scorer["answered"] else []
    return {figure["name"]: estimate_of(figure) for figure in figures}


def coverage_of(of_scorer: Mapping[str, Any]) -> str:
    """`answered 43 of 80 rows, 53.8% (42.9 to 64.3)`, empty if it answered all."""
    if not (answered := of_scorer["answered"]):
        return ""
    whole = answered["rows"] + of_scorer["failed"]["rows"]
    share_of = estimate_of(answered["coverage"])
    return f"answered {answered['rows']:,} of {whole:,} rows, {share_of.value:.1f}% ({share_of.interval('.1f')})"


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
        parts.append(
            f"{coverage_of(card)}; the others count as wrong in all figures but those where it answered ({reason})"
        )
    if card["truncated"] and card["truncated"]["rows"]:  # None of a scorer that does not say
        parts.append(f"{card['truncated']['rows']:,} rows scored truncated")
    return ", ".join(parts)


def markdown(card: Mapping[str, Any]) -> str:
    """The table for a model card: sections in percent with their 95% intervals, and published figures beside."""
    names = list(card["scorers"])
    figures = {name: {f["name"]: f for f in of["figures"]} for name, of in card["scorers"].items()}
    columns = {
        "accuracy, % (95% interval)" if len(names) == 1 else name: {
            key: estimate_of(figure) for key, figure in figures[name].items()
        }
        for name in names
    }
    for name in names:
        if answered := answered_figures(card["scorers"][name]):
            columns["where it answered" if len(names) == 1 else f"{name}, where it answered"] = answered
    rows = [
        f"| {named(figure)} | {' | '.join(f'{of.get(key, NOTHING):.1f}' for of in columns.values())} |"
        for key, figure in figures[names[0]].items()
        if figure["kind"] != "subset"
    ]
    heads = " | ".join(columns)
    lines = [f"## Scorecard: {card['suite']}", "", f"| | {heads} |", f"|---|{'---|' * len(columns)}", *rows, ""]
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
