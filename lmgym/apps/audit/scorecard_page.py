"""The page of a scorecard: one file that needs no network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from lmgym.apps.audit.journal import key_of
from lmgym.apps.audit.scorecard import (
    ScoredBy,
    answered_figures,
    coverage_of,
    estimate_of,
    mistakes,
    named,
    p_words,
    reading_of,
)
from lmgym.apps.audit.suites import Item
from lmgym.errors import listed
from lmgym.report.charts import bars
from lmgym.report.page import render
from lmgym.report.panels import Card, Panel, Section, Table
from lmgym.report.samples import shown
from lmgym.statistics import NOTHING, notes

STYLES = ("concise", "detailed", "markdown")
LONGEST = 700  # characters of a text that is shown


def scorecard_page(card: Mapping[str, Any], items: Sequence[Item], scorers: Mapping[str, ScoredBy]) -> str:
    """The scorecard as HTML, with the rows that each scorer gets most wrong."""
    names = list(card["scorers"])
    sections = [
        Section("scores", "Scores", [*_charts(card), _table(card)]),
        Section("comparisons", "Paired comparisons", _comparisons(card)),
        Section("styles", "Styles: 3 x 3", _matrices(card)),
        Section("published", "Published figures", _published(card)),
        Section("mistakes", "Largest mistakes", [_mistakes(name, items, scorers[name]) for name in names]),
        Section("subsets", "Subsets", _subsets(card)),
        Section("reading", "What was scored", [_reading(card)]),
    ]
    lacks = card["lacks"]
    return render(
        title=shown(f"Scorecard: {card['suite']}"),
        badge={"kind": "warn", "words": "part of the suite"} if lacks else {"kind": "good", "words": "whole"},
        lead=_lead(card),
        cards=_cards(card),
        sections=[section for section in sections if any(p.table or p.chart or p.pairs for p in section.panels)],
    )


def _lead(card: Mapping[str, Any]) -> list[str]:
    lead = [
        f"{card['rows']:,} rows of {shown(card['source'])}. Figures are percent; intervals are of 95%, over prompts."
    ]
    if card["lacks"]:
        lead.append(
            f"Overall figures are without: {listed(card['lacks'], 30)}. They are not those that others publish."
        )
    return [*lead, *([card["not_read"]] if card["not_read"] else []), *map(shown, card["notes"])]


def _cards(card: Mapping[str, Any]) -> list[Card]:
    found = []
    for name, of in card["scorers"].items():
        overall = estimate_of(of["figures"][0])
        label = f"{shown(name)}, overall{' (part)' if card['lacks'] else ''}"
        found.append(
            Card(label, "–" if overall.value is None else f"{overall.value:.1f}", note=overall.interval(".1f"))
        )
        if answered := answered_figures(of):
            found[-1] = replace(found[-1], label=f"{label}, unanswered rows wrong")
            where, name_of = answered["overall"], f"{shown(name)}, where it answered"
            value = "–" if where.value is None else f"{where.value:.1f}"
            found.append(Card(name_of, value, note=where.interval(".1f"), about=coverage_of(of)))
    return found


def _main(figures: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [figure for figure in figures if figure["kind"] != "subset"]


def chance(card: Mapping[str, Any], of_scorer: Mapping[str, Any]) -> float | None:
    """The figure of a scorer at random, in percent; None for rows with several replies each."""
    if card["suite"] == "rewardbench2":
        return 25.0
    are_pairs = card["suite"] == "rm-bench" or of_scorer["pairs"] == card["rows"]
    return 50.0 if are_pairs else None


def _charts(card: Mapping[str, Any]) -> list[Panel]:
    panels = []
    for number, (name, of) in enumerate(card["scorers"].items()):
        found = [(figure["name"], estimate_of(figure)) for figure in _main(of["figures"])]
        rows = [(label, e.value, e.low, e.high) for label, e in found if e.value is not None]
        base = chance(card, of)
        about = "The dashed line is chance" + (", but for Ties." if card["suite"] == "rewardbench2" else ".")
        chart = bars(rows, "right, %", base)
        for layer in chart["layer"]:
            layer["encoding"]["y"]["scale"] = {"domain": [0, 100]}
        panels.append(Panel(f"chart_{number}", shown(name), about if base else "", chart))
    return panels


def _table(card: Mapping[str, Any]) -> Panel:
    estimates, rows = [], []
    by_scorer = [{f["name"]: f for f in of["figures"]} for of in card["scorers"].values()]
    where_answered = {name: found for name, of in card["scorers"].items() if (found := answered_figures(of))}
    for key, figure in by_scorer[0].items():
        if figure["kind"] != "subset":
            own = [estimate_of(figures[key]) for figures in by_scorer]
            own += [answered.get(key, NOTHING) for answered in where_answered.values()]
            estimates += own
            rows.append([shown(named(figure)), f"{figure['units']:,}", *(f"{one:.1f}" for one in own)])
    columns = ["", "prompts", *(f"{shown(name)} (95%)" for name in card["scorers"])]
    columns += [f"{shown(name)}, where it answered" for name in where_answered]
    about = " ".join(notes(estimates, "prompt"))
    return Panel("table", "Sections", about, table=Table(columns, rows, frozenset(range(1, len(columns)))), wide=True)


def _comparisons(card: Mapping[str, Any]) -> list[Panel]:
    if not card["comparisons"]:
        return []
    rows = [
        [
            shown(f"{row['second']} − {row['first']}"),
            shown(f"{row['figure']}{where}"),
            f"{estimate_of(row['estimate']):+.1f}",
            p_words(row),
        ]
        for where, found in (
            ("", card["comparisons"]),
            (", where both answered", card["comparisons_where_both_answered"]),
        )
        for row in found
    ]
    about = (
        "Differences on the same rows in percentage points; p by sign flips of prompts, adjusted for all rows of this "
        "table (Holm)."
    )
    table = Table(["scorers", "figure", "difference (95%)", "p, adjusted"], rows, frozenset({2, 3}))
    return [Panel("comparisons", "Paired comparisons", about, table=table, wide=True)]


def _matrices(card: Mapping[str, Any]) -> list[Panel]:
    panels = []
    for number, (name, of) in enumerate(card["scorers"].items()):
        for domain, matrix in of.get("matrices", {}).items():
            rows = [
                [style, *(f"{100 * value:.1f}" for value in row)] for style, row in zip(STYLES, matrix, strict=True)
            ]
            table = Table(["", *STYLES], rows, frozenset({1, 2, 3}))
            about = "The style of the right reply by that of the wrong one: hard above the diagonal, easy below."
            panels.append(Panel(f"styles_{number}_{domain}", f"{shown(name)}, {domain}", about, table=table))
    return panels


def _published(card: Mapping[str, Any]) -> list[Panel]:
    published = card["published"]["overall_percent"]
    if not published:
        return []
    rows = [[model, f"{value:g}"] for model, value in published.items()]
    about = f"Overall, in percent, from {card['published']['from']}: published, not measured here."
    if card["lacks"]:
        about += " They are of the whole suite, which was not scored."
    return [Panel("published", "Published", about, table=Table(["model", "overall"], rows, frozenset({1})))]


def _mistakes(name: str, items: Sequence[Item], scored: ScoredBy) -> Panel:
    pairs = []
    for item, right, wrong in mistakes(items, scored):
        row = scored.scores[key_of(item)]
        number = len(item.chosen)
        texts = item.chosen[row.scores[:number].index(right)], item.rejected[row.scores[number:].index(wrong)]
        sides = [
            {"name": side, "text": shown(text, LONGEST), "scores": [("score", score)], "notes": ""}
            for side, text, score in zip(("right", "wrong"), texts, (right, wrong), strict=True)
        ]
        said = "\n\n".join(turn.text for turn in item.conversation.turns)
        pairs.append({"prompt": shown(f"[{item.subset or item.id}] {said}", LONGEST), "sides": sides, "changes": []})
    about = "The rows in which a wrong reply is furthest above a right one."
    return Panel(f"mistakes_{shown(name)}", shown(name), about, pairs=pairs, wide=True)


def _subsets(card: Mapping[str, Any]) -> list[Panel]:
    rows = []
    by_scorer = [{f["name"]: f for f in of["figures"] if f["kind"] == "subset"} for of in card["scorers"].values()]
    for key, figure in by_scorer[0].items():
        rows.append([shown(key), f"{figure['units']:,}", *(f"{estimate_of(own[key]):.1f}" for own in by_scorer)])
    columns = ["", "prompts", *(f"{shown(name)} (95%)" for name in card["scorers"])]
    return (
        [Panel("subsets", "Subsets", table=Table(columns, rows, frozenset(range(1, len(columns)))), wide=True)]
        if rows
        else []
    )


def _reading(card: Mapping[str, Any]) -> Panel:
    rows = [[shown(name), shown(of["scorer"]), reading_of(of)] for name, of in card["scorers"].items()]
    return Panel("reading", "What was scored", table=Table(["scorer", "path", "scored"], rows), wide=True)
