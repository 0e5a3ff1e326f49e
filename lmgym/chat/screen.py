"""An exchange as a table, and a line of progress while it is generated. All text is cleaned first.

A column a scorer; rank 1 is best; the chosen row is marked.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import IO

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from lmgym.chat.actions import Shown, Talk
from lmgym.chat.exchanges import Candidate, Exchange
from lmgym.console import CleanConsole, clean, clean_line, printed_line
from lmgym.scoring.ranking import ranks, standardise

LEAST_REPLY, SQUEEZED_REPLY, MOST_SHOWN, LONGEST_NAME = 24, 8, 2000, 16
"""columns that a reply needs at least, and beside the one scorer that decides, characters of a reply that are shown,
letters of a scorer's name"""


def make_console(file: IO[str] | None = None, width: int | None = None) -> CleanConsole:
    """A console that is coloured on a terminal, and sends no escape sequence with NO_COLOR, TERM=dumb or elsewhere."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "") in ("", "dumb", "unknown")
    return CleanConsole(width, file, None if plain else "auto")


def show(console: CleanConsole, talk: Talk, shown: Shown) -> None:
    """What came of a line: the table, its notes, the reply, and words."""
    if shown.exchange is not None:
        exchange = shown.exchange
        table, absent = table_of(exchange, talk.view, console.width, talk.session.weights)
        console.print(table)
        for note in [*exchange.notes, *_what_is_left_out(exchange, absent)]:
            console.print(Text(printed_line(f"note: {note}"), "yellow"))
        if exchange.is_open:
            console.print(Text("%pick N, %write TEXT, %tie or %reject: then it goes on"))
        else:
            console.print(reply_line(exchange))
    if shown.text and not shown.ok:
        console.print(Text(printed_line(shown.text), "red"))
    elif shown.text:
        console.print(Text("\n".join(map(printed_line, shown.text.split("\n")))))


def _what_is_left_out(exchange: Exchange, absent: Sequence[str]) -> list[str]:
    """What the person should know of the columns that found no room."""
    lost = [name for name in absent if name in exchange.names]
    notes = [f"the terminal is too narrow for {', '.join(lost)}"] if lost else []
    cut = [str(i) for i, candidate in enumerate(exchange.candidates, 1) if candidate.finish_reason == "length"]
    if cut and "end" in absent:
        notes.append(f"cut off at max_new_tokens: {', '.join(cut) if len(cut) < len(exchange.candidates) else 'all'}")
    return notes


def reply_line(exchange: Exchange) -> Text:
    """What was said in the end; further lines are indented, so that none looks like a prompt."""
    reply = _cropped(exchange.reply or "").replace("\n", "\n     ")
    return Text.assemble(("Bot: ", "bold"), Text(reply, "bold green"))


def table_of(exchange: Exchange, view: str, width: int, deciding: Collection[str]) -> tuple[Table, list[str]]:
    """(the table, columns that found no room). The scorers that decide stay longest; a reply has room in any case."""
    names = [] if exchange.is_open else exchange.names
    columns = {name: _cells(exchange, name, view) for name in names}
    headings = {name: _heading(exchange, name) for name in names}
    widths = {n: max(cell_len(headings[n]), *(cell_len(c) for c, _ in columns[n])) for n in names}
    kept = _that_fit(widths, width, deciding)
    table = Table(title=Text(f"turn {exchange.id}", "dim"), title_justify="left", expand=False)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("reply", overflow="fold", ratio=None, min_width=max(1, min(SQUEEZED_REPLY, width - 9)))
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


def _that_fit(widths: Mapping[str, int], width: int, deciding: Collection[str]) -> set[str]:
    """The columns that have room beside a reply: scorers that decide, other scorers, tokens, how it ended."""
    kept: set[str] = set()
    room = width - LEAST_REPLY - 8 - 3
    for name in [*sorted(widths, key=lambda name: name not in deciding), "tokens", "end"]:
        takes = widths.get(name, 6) + 3
        squeezed = LEAST_REPLY - SQUEEZED_REPLY if not kept and name in deciding else 0
        if takes <= room + squeezed:
            kept.add(name)
            room -= takes
    return kept


def _tokens(candidate: Candidate) -> str:
    return str(candidate.tokens) if candidate.tokens or not candidate.text else "?"  # some servers do not count


def _heading(exchange: Exchange, name: str) -> str:
    short = name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
    return clean_line(short) + (" *" if name in exchange.selected_by.replace("=", " ").split() else "")


def _cells(exchange: Exchange, name: str, view: str) -> list[tuple[str, str]]:
    """(words, style) of a scorer's column. Coloured where it disagrees with the other scorers' mean rank."""
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
        elsewhere = [rank for column in others if (rank := column[i]) is not None]
        words = str(value) if view == "ranks" else f"{value:+.2f}" if view == "z" else _number(float(value))
        cells.append((words, _colour(place, elsewhere, len(scores))))
    return cells


def _colour(place: int, elsewhere: list[int], n: int) -> str:
    """Green for the best, magenta where the rank is far from that of the others, by half of the candidates or more."""
    if elsewhere and n > 1 and abs(place - sum(elsewhere) / len(elsewhere)) >= n / 2:
        return "magenta"
    return "green" if place == 1 else ""


def _number(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"
    return f"{value:.2e}" if math.isfinite(value) else str(value)


def _cropped(text: str) -> str:
    if len(text) <= MOST_SHOWN:
        return clean(text)
    return clean(text[:MOST_SHOWN]) + f"… and {len(text) - MOST_SHOWN:,} characters more"


QUIET_SECONDS, STEP_SECONDS, TICK_SECONDS = 0.5, 0.1, 1.0
"""until the progress line appears, between two changes of it, and until it changes though nothing was told"""


@contextlib.contextmanager
def progress_on(file: IO[str]) -> "Iterator[ProgressLine | None]":
    """Shows there what it is told while it lasts; None where `file` is no terminal."""
    if not file.isatty():
        yield None
        return
    line, over = ProgressLine(file), threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            line.show()

    clock = threading.Thread(target=tick, name="progress", daemon=True)
    clock.start()
    try:
        yield line
    finally:
        over.set()
        clock.join()
        line.close()


class ProgressLine:
    """`12 of at most 64, 3 s` in a line that is written over; tokens or replies, as the generator counts."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.file, self.clock = file, clock
        self.began = clock()
        self.next, self.width, self.made = self.began + QUIET_SECONDS, 0, ""
        self.lock = threading.Lock()

    def __call__(self, done: int, of: int) -> None:
        self.made = f"{done} of at most {of}, "
        self.show()

    def show(self) -> None:
        """Writes the line, unless it was written just now."""
        with self.lock:
            now = self.clock()
            if now < self.next:
                return
            self.next = now + STEP_SECONDS
            words = f"{self.made}{now - self.began:.0f} s; Ctrl-C stops it"
            self.file.write(f"\r{words:{self.width}}")
            self.file.flush()
            self.width = max(self.width, len(words))

    def close(self) -> None:
        """Takes the line away."""
        if self.width:
            self.file.write(f"\r{' ' * self.width}\r")
            self.file.flush()
