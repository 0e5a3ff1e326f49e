"""The table of a suite's scores, on the terminal and as a page, next to published ones."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from rich.table import Table

from lmgym.apps.games.dialogue.suites import GameScore, SuiteScore
from lmgym.console import CONSOLE, say
from lmgym.runs.files import write_text
from lmgym.statistics import notes

ANCHORS = (("gpt-4o", 60.45), ("Llama-3.1-70B", 48.18), ("Llama-3.1-8B", 28.09), ("Qwen2.5-7B", 16.38))
"""clemscores of clembench's leaderboard, version 2.0; comparable only with all games and instances of that version"""
COLUMNS = ("game", "%Played", "quality", "score", "episodes")
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}table{border-collapse:"
    "collapse;width:100%;margin:1rem 0}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child{text-align:left}tr.sum{font-weight:600}"
)


def suite_table(model: str, scores: Mapping[str, SuiteScore]) -> None:
    """Prints a table of each suite that was played."""
    for suite, score in scores.items():
        if score.score is None:
            continue
        table = Table(title=f"{model}, {suite}", title_justify="left")
        for number, column in enumerate(COLUMNS):
            table.add_column(column, justify="right" if number else "left")
        for row in _rows(score):
            table.add_row(*row)
        CONSOLE.print(table)
        for note in _notes(score):
            say(note)


def write_report(path: Path, model: str, scores: Mapping[str, SuiteScore], remarks: Sequence[str] = ()) -> None:
    """Writes the page, with remarks on the whole. All text is escaped."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(model)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{escape(model)}</h1><p>Intervals are of 95%, over episodes.</p>")
    parts.extend(f"<p>{escape(remark)}</p>" for remark in remarks)
    for suite, score in scores.items():
        if score.score is None:
            parts.append(f"<h2>{escape(suite)}</h2><p>Not played.</p>")
            continue
        head = "".join(f"<th>{escape(column)}</th>" for column in COLUMNS)
        rows = [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in _rows(score)]
        rows[-1] = rows[-1].replace("<tr>", "<tr class=sum>")
        parts.append(f"<h2>{escape(suite)}</h2><table><tr>{head}</tr>{''.join(rows)}</table>")
        parts.extend(f"<p>{escape(note)}</p>" for note in _notes(score))
        if suite == "clem":
            anchors = "".join(f"<tr><td>{escape(name)}</td><td>{value:.2f}</td></tr>" for name, value in ANCHORS)
            parts.append(
                "<h3>clembench's leaderboard, version 2.0</h3><p>Comparable with all its games and instances only."
                f"</p><table><tr><th>model</th><th>clemscore</th></tr>{anchors}</table>"
            )
    write_text(path, "\n".join(parts) + "\n")


def _notes(score: SuiteScore) -> list[str]:
    return notes(
        (one for game in score.games.values() for one in (game.played_estimate, game.quality_estimate)), "episode"
    )


def _rows(score: SuiteScore) -> list[tuple[str, ...]]:
    """A row a game, and one of the suite."""
    rows = [(name, *_cells(game)) for name, game in score.games.items()]
    coverage = "" if score.coverage is None else f"{score.coverage:.0%} played"
    sums = (score.played, score.quality, score.score)
    return [*rows, ("all", *("" if value is None else f"{value:.2f}" for value in sums), coverage)]


def _cells(game: GameScore) -> tuple[str, ...]:
    if not game.episodes:
        return "", "", "", f"0 of {game.expected}"
    expected = "" if game.expected in (None, game.episodes) else f" of {game.expected}"
    return (
        f"{game.played:.2f} ({game.played_estimate.interval('.1f')})",
        "none" if math.isnan(game.quality) else f"{game.quality:.2f} ({game.quality_estimate.interval('.1f')})",
        f"{game.score:.2f}",
        f"{game.episodes}{expected}",
    )
