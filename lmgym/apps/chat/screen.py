"""Shows an exchange as a table, and a progress line while replies are generated. All text is cleaned first.

The table has a column per scorer, with bars, and a mark at the chosen row; rank 1 is best. Rows that are on the screen
already are not drawn again.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from lmgym.apps.chat.actions import ChatView, Response
from lmgym.apps.chat.exchanges import Candidate, Exchange
from lmgym.console import CleanConsole, clean, clean_line, printed_line
from lmgym.generation.protocol import Progress
from lmgym.scoring.ranking import ranks, standardise

REPLY_WIDTH, NARROW_REPLY_WIDTH = 24, 8  # least width of a reply; and beside the deciding scorer alone
NARROW_BAR, BAR, WIDE = 4, 8, 120  # cells of the longest bar; and from this width on
EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")  # of a cell
MOST_SHOWN, MOST_OF_THOUGHT, LONGEST_NAME = 2000, 500, 16  # characters of a reply, and of a scorer's name


def make_console(file: IO[str] | None = None, width: int | None = None) -> CleanConsole:
    """A console with colours on a terminal; without escape sequences elsewhere, and with NO_COLOR or TERM=dumb."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "") in ("", "dumb", "unknown")
    return CleanConsole(width, file, None if plain else "auto")


def show(console: CleanConsole, chat: ChatView, response: Response) -> None:
    """Shows what is new of a response's exchange (rows, notes, the reply), and the text."""
    if response.exchange is not None:
        _show_exchange(console, chat, response.exchange, response.first)
    if response.text and not response.ok:
        console.print(Text(printed_line(response.text), "red"))
    elif response.text:
        console.print(Text("\n".join(map(printed_line, response.text.split("\n")))))
    for command in response.commands:
        console.print(Text(printed_line(command)), soft_wrap=True)


def _show_exchange(console: CleanConsole, chat: ChatView, exchange: Exchange, first: int) -> None:
    notes, most = list(exchange.notes), chat.session.sampling.max_new_tokens
    has_rows = first < len(exchange.candidates)
    if _is_reply_alone(exchange):
        notes += _notes_on_omitted(exchange, ["end"], most)
    elif has_rows:
        table, legend, omitted = table_of(exchange, chat.view, console, chat.session.weights, first)
        console.print(table)
        if legend:
            console.print(legend)
        notes += _notes_on_omitted(exchange, omitted, most)
    for note in notes:
        console.print(Text(printed_line(f"note: {note}"), "yellow"))
    if has_rows:
        console.print(
            Text("Decide: %pick N, %write TEXT, %tie or %reject") if exchange.is_open else _reply(console, exchange)
        )


def _is_reply_alone(exchange: Exchange) -> bool:
    """True for a single reply without scores, which needs no table."""
    return len(exchange.candidates) == 1 and not exchange.names and not exchange.is_open


def _notes_on_omitted(exchange: Exchange, omitted: Sequence[str], most: int) -> list[str]:
    """Notes on the columns that did not fit, and if every reply was cut off. `most` is the present max_new_tokens."""
    scorers = [name for name in omitted if name in exchange.names]
    notes = [f"the terminal is too narrow for {', '.join(scorers)}"] if scorers else []
    cut = [str(i) for i, candidate in enumerate(exchange.candidates, 1) if candidate.finish_reason == "length"]
    if cut and ("end" in omitted or len(cut) == len(exchange.candidates)):
        which = "replies " + ", ".join(cut)
        if len(cut) == len(exchange.candidates):
            which = "all replies" if len(cut) > 1 else "the reply"
        notes.append(f"cut off at max_new_tokens: {which}; %set max_new_tokens={2 * most} allows longer ones")
    return notes


def _reply(console: CleanConsole, exchange: Exchange) -> Text:
    """The bot's reply, below its thought; further lines are indented, so that none looks like a prompt."""
    said = _indented(console, "bot> ", exchange.reply or "", "bold green")
    thought = "" if exchange.chosen is None else exchange.candidates[exchange.chosen].thought
    return (
        Text("\n").join([_indented(console, "thought> ", thought, "dim", MOST_OF_THOUGHT), said]) if thought else said
    )


def _indented(console: CleanConsole, prompt: str, text: str, style: str, most: int = MOST_SHOWN) -> Text:
    lines = Text(_cropped(text, most), style).wrap(console, console.width - len(prompt))
    return Text.assemble((prompt, "bold"), Text(f"\n{' ' * len(prompt)}").join(lines))


@dataclass(frozen=True)
class ScorerColumn:
    """A scorer's column; for each cell the number, its style, and the length of its bar."""

    heading: str
    numbers: list[str]
    styles: list[str]
    lengths: list[float]
    """0 for the lowest score of the turn, 1 for the highest; empty without bars"""

    def width(self, bar: int) -> int:
        """Of the widest cell, the heading included, with bars of at most `bar` cells."""
        bars = 1 + bar if bar and self.lengths else 0
        return max(cell_len(self.heading), len(self.numbers[0]) + bars)

    def cell(self, i: int, bar: int) -> Text:
        """A number and its bar."""
        eighths = 1 + round(self.lengths[i] * (8 * bar - 1)) if bar and self.lengths and self.lengths[i] >= 0 else 0
        return Text(f"{self.numbers[i]} {'█' * (eighths // 8)}{EIGHTHS[eighths % 8]}".rstrip(), self.styles[i])


def table_of(
    exchange: Exchange, view: str, console: CleanConsole, deciding: Collection[str], first: int = 0
) -> tuple[Table, Text, list[str]]:
    """(the table of the candidates from `first` on, its legend, columns that did not fit).

    The deciding scorers are omitted last; the reply is always shown.
    """
    width, names = console.width, [] if exchange.is_open else exchange.names
    columns = {name: _column(exchange, name, view) for name in names}
    bars = (0,) if console.options.ascii_only else (0, NARROW_BAR, BAR) if width >= WIDE else (0, NARROW_BAR)
    layouts = [(bar, _fitting_columns({n: c.width(bar) for n, c in columns.items()}, width, deciding)) for bar in bars]
    # the longest bars that cost no scorer its column
    bar, kept = next(layout for layout in reversed(layouts) if layouts[0][1] & set(names) <= layout[1])
    shown = [columns[name] for name in names if name in kept]
    more = len(exchange.candidates) - first
    title = f"turn {exchange.id}" + (f", {more} more {'replies' if more > 1 else 'reply'}" if first else "")
    table = Table(title=Text(title, "dim"), title_justify="left", expand=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("reply", overflow="fold", ratio=None, min_width=max(1, min(NARROW_REPLY_WIDTH, width - 9)))
    for column in shown:
        justify: JustifyMethod = "left" if bar and column.lengths else "right"
        table.add_column(Text(column.heading), justify=justify, min_width=column.width(bar), no_wrap=True)
    for name in ("tokens", "end"):
        if name in kept:
            table.add_column(name, justify="right", no_wrap=True)
    for i, candidate in list(enumerate(exchange.candidates))[first:]:
        chosen = i == exchange.chosen
        row = [Text(f"{'>' if chosen else ' '}{i + 1}"), Text(_cropped(candidate.text) or "(empty)")]
        row += [column.cell(i, bar) for column in shown]
        row += [Text(_tokens(candidate))] if "tokens" in kept else []
        row += [Text(clean_line(candidate.finish_reason))] if "end" in kept else []
        table.add_row(*row, style="bold" if chosen else None)
    styles = {style for column in shown for style in column.styles[first:] if console.color_system}
    legend = _legend(exchange.chosen is not None and exchange.chosen >= first, shown, view, bar, styles)
    return table, legend, [name for name in [*names, "tokens", "end"] if name not in kept]


def _legend(chosen: bool, columns: Sequence[ScorerColumn], view: str, bar: int, styles: Collection[str]) -> Text:
    """A line that explains the marks, bars and colours of the table; empty while nothing is chosen."""
    entries = [
        ("> chosen", "dim", chosen),
        ("* selects", "dim", any(column.heading.endswith(" *") for column in columns)),
        ("1: best", "dim", columns and view == "ranks"),
        ("z: deviations from the mean", "dim", columns and view == "z"),
        ("bar: worst to best", "dim", bar and any(column.lengths for column in columns)),
        ("green: best", "green", "green" in styles),
        ("magenta: scorers disagree", "magenta", "magenta" in styles),
    ]
    return Text("  ").join(Text(text, style) for text, style, is_used in entries if is_used)


def _fitting_columns(widths: Mapping[str, int], width: int, deciding: Collection[str]) -> set[str]:
    """The columns that fit beside a reply, in this order: deciding scorers, other scorers, tokens, end."""
    kept: set[str] = set()
    room = width - REPLY_WIDTH - 8 - 3
    for name in [*sorted(widths, key=lambda name: name not in deciding), "tokens", "end"]:
        needed = widths.get(name, 6) + 3
        extra = REPLY_WIDTH - NARROW_REPLY_WIDTH if not kept and name in deciding else 0
        if needed <= room + extra:
            kept.add(name)
            room -= needed
    return kept


def _tokens(candidate: Candidate) -> str:
    return str(candidate.tokens) if candidate.tokens or not candidate.text else "?"  # some servers do not count


def _heading(exchange: Exchange, name: str) -> str:
    short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    return clean_line(short) + (" *" if name in exchange.selected_by.replace("=", " ").split() else "")


def _column(exchange: Exchange, name: str, view: str) -> ScorerColumn:
    scores = exchange.column(name)
    places = ranks(scores)
    views: dict[str, Sequence[float | None]] = {"scores": scores, "ranks": places, "z": standardise(scores)}
    others = [ranks(exchange.column(other)) for other in exchange.names if other != name]
    styles = []
    for i, place in enumerate(places):
        other_ranks = [rank for column in others if (rank := column[i]) is not None]
        styles.append("red" if place is None else _colour(place, other_ranks, len(scores)))
    numbers = [_value(value, view) for value in views[view]]
    width = max(map(len, numbers))
    lengths = [] if view == "ranks" else _bar_lengths(scores)
    return ScorerColumn(_heading(exchange, name), [f"{number:>{width}}" for number in numbers], styles, lengths)


def _value(value: float | None, view: str) -> str:
    if value is None:
        return "failed"
    return str(value) if view == "ranks" else f"{value:+.2f}" if view == "z" else _number(float(value))


def _bar_lengths(scores: Sequence[float | None]) -> list[float]:
    """0 for the lowest score to 1 for the highest, -1 for a scorer that failed; empty if all are equal."""
    known = [score for score in scores if score is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if not 0 < high - low < math.inf:
        return []
    return [-1.0 if score is None else (score - low) / (high - low) for score in scores]


def _colour(place: int, other_ranks: list[int], n: int) -> str:
    """Green for the best; magenta if the rank is half of the candidates or more from the other scorers' mean rank."""
    if other_ranks and n > 1 and abs(place - sum(other_ranks) / len(other_ranks)) >= n / 2:
        return "magenta"
    return "green" if place == 1 else ""


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def _cropped(text: str, most: int = MOST_SHOWN) -> str:
    if len(text) <= most:
        return clean(text)
    return clean(text[:most]) + f"… and {len(text) - most:,} more characters"


DELAY_SECONDS, UPDATE_SECONDS = 0.5, 0.2
"""until the progress line appears, and between two updates"""


@contextlib.contextmanager
def progress_on(file: IO[str]) -> Iterator[Progress | None]:
    """A context with a line like `generating: 12 of at most 64, 3 s` on a terminal; None if `file` is not a terminal.

    The line is erased at the end. The generator counts tokens or replies.
    """
    if not file.isatty():
        yield None
        return
    count, began, done = "", time.monotonic(), threading.Event()

    def update(made: int, most: int) -> None:
        nonlocal count
        count = f"generating: {made} of at most {most}, "

    def draw() -> None:
        width = 0
        finished = done.wait(DELAY_SECONDS)
        while not finished:
            text = f"{count}{time.monotonic() - began:.0f} s; Ctrl-C stops it"
            file.write(f"\r{text:{width}}")
            file.flush()
            width = max(width, len(text))
            finished = done.wait(UPDATE_SECONDS)
        if width:
            file.write(f"\r{' ' * width}\r")
            file.flush()

    thread = threading.Thread(target=draw, name="progress", daemon=True)
    thread.start()
    try:
        yield update
    finally:
        done.set()
        thread.join()
