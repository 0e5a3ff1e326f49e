"""Shows an exchange as a table, and a progress line while replies are generated. All text is cleaned first.

The table has a column per scorer and a mark at the chosen row; rank 1 is best.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import IO

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lmgym.chat.actions import ChatView, Response
from lmgym.chat.exchanges import Candidate, Exchange
from lmgym.console import CleanConsole, clean, clean_line, printed_line
from lmgym.generation.protocol import Progress
from lmgym.scoring.ranking import ranks, standardise

REPLY_WIDTH, NARROW_REPLY_WIDTH = 24, 8  # least width of a reply; and beside the deciding scorer alone
MOST_SHOWN, LONGEST_NAME = 2000, 16  # characters of a reply, and of a scorer's name


def make_console(file: IO[str] | None = None, width: int | None = None) -> CleanConsole:
    """A console with colours on a terminal; without escape sequences elsewhere, and with NO_COLOR or TERM=dumb."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "") in ("", "dumb", "unknown")
    return CleanConsole(width, file, None if plain else "auto")


def show(console: CleanConsole, chat: ChatView, response: Response) -> None:
    """Shows the table of a response, its notes, the reply and the text."""
    if response.exchange is not None:
        exchange = response.exchange
        table, omitted = table_of(exchange, chat.view, console.width, chat.session.weights)
        console.print(table)
        for note in [*exchange.notes, *_notes_on_omitted(exchange, omitted)]:
            console.print(Text(printed_line(f"note: {note}"), "yellow"))
        console.print(Text("Decide: %pick N, %write TEXT, %tie or %reject") if exchange.is_open else _reply(exchange))
    if response.text and not response.ok:
        console.print(Text(printed_line(response.text), "red"))
    elif response.text:
        console.print(Text("\n".join(map(printed_line, response.text.split("\n")))))
    if response.command:
        console.print(Text(printed_line(response.command)), soft_wrap=True)


def _notes_on_omitted(exchange: Exchange, omitted: Sequence[str]) -> list[str]:
    """Notes on the columns that did not fit."""
    scorers = [name for name in omitted if name in exchange.names]
    notes = [f"the terminal is too narrow for {', '.join(scorers)}"] if scorers else []
    cut = [str(i) for i, candidate in enumerate(exchange.candidates, 1) if candidate.finish_reason == "length"]
    if cut and "end" in omitted:
        notes.append(f"cut off at max_new_tokens: {', '.join(cut) if len(cut) < len(exchange.candidates) else 'all'}")
    return notes


def _reply(exchange: Exchange) -> Text:
    """The bot's reply; further lines are indented, so that none looks like a prompt."""
    reply = _cropped(exchange.reply or "").replace("\n", "\n     ")
    return Text.assemble(("Bot: ", "bold"), Text(reply, "bold green"))


def table_of(exchange: Exchange, view: str, width: int, deciding: Collection[str]) -> tuple[Table, list[str]]:
    """(the table, columns that did not fit). The deciding scorers are omitted last; the reply is always shown."""
    names = [] if exchange.is_open else exchange.names
    columns = {name: _cells(exchange, name, view) for name in names}
    headings = {name: _heading(exchange, name) for name in names}
    widths = {n: max(cell_len(headings[n]), *(cell_len(c) for c, _ in columns[n])) for n in names}
    kept = _fitting_columns(widths, width, deciding)
    table = Table(title=Text(f"turn {exchange.id}", "dim"), title_justify="left", expand=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("reply", overflow="fold", ratio=None, min_width=max(1, min(NARROW_REPLY_WIDTH, width - 9)))
    shown = [name for name in names if name in kept]
    for name in shown:
        table.add_column(Text(headings[name]), justify="right", no_wrap=True)
    for name in ("tokens", "end"):
        if name in kept:
            table.add_column(name, justify="right", no_wrap=True)
    for i, candidate in enumerate(exchange.candidates):
        chosen = i == exchange.chosen
        row = [Text(f"{'>' if chosen else ' '}{i + 1}"), Text(_cropped(candidate.text) or "(empty)")]
        row += [Text(*columns[name][i]) for name in shown]
        row += [Text(_tokens(candidate))] if "tokens" in kept else []
        row += [Text(clean_line(candidate.finish_reason))] if "end" in kept else []
        table.add_row(*row, style="bold" if chosen else None)
    return table, [name for name in [*names, "tokens", "end"] if name not in kept]


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


def _cells(exchange: Exchange, name: str, view: str) -> list[tuple[str, str]]:
    """(text, style) of each cell of a scorer's column."""
    scores = exchange.column(name)
    places = ranks(scores)
    views: dict[str, Sequence[float | None]] = {"scores": scores, "ranks": places, "z": standardise(scores)}
    values = views[view]
    others = [ranks(exchange.column(other)) for other in exchange.names if other != name]
    cells = []
    for i, value in enumerate(values):
        if value is None:
            cells.append(("failed", "red"))
            continue
        place = places[i]
        assert place is not None
        other_ranks = [rank for column in others if (rank := column[i]) is not None]
        text = str(value) if view == "ranks" else f"{value:+.2f}" if view == "z" else _number(float(value))
        cells.append((text, _colour(place, other_ranks, len(scores))))
    return cells


def _colour(place: int, other_ranks: list[int], n: int) -> str:
    """Green for the best; magenta if the rank is half of the candidates or more from the other scorers' mean rank."""
    if other_ranks and n > 1 and abs(place - sum(other_ranks) / len(other_ranks)) >= n / 2:
        return "magenta"
    return "green" if place == 1 else ""


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def _cropped(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return clean(text)
    return clean(text[:MOST_SHOWN]) + f"… and {len(text) - MOST_SHOWN:,} more characters"


DELAY_SECONDS, UPDATE_SECONDS = 0.5, 0.2
"""until the progress line appears, and between two updates"""


@contextlib.contextmanager
def progress_on(file: IO[str]) -> Iterator[Progress | None]:
    """A context with a line like `12 of at most 64, 3 s` on a terminal; None if `file` is not a terminal.

    The line is erased at the end. The generator counts tokens or replies.
    """
    if not file.isatty():
        yield None
        return
    count, began, done = "", time.monotonic(), threading.Event()

    def update(made: int, most: int) -> None:
        nonlocal count
        count = f"{made} of at most {most}, "

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
