"""All text for the terminal: control characters are displayed instead of executed, and a message is one line.

Text of data, models, files, flags and other libraries' exceptions may hold escape sequences, bidirectional marks and
lone surrogates. `say` prints a line, `CONSOLE` (or another `CleanConsole`) tables and whole texts; nothing else in the
library prints (tests/unit/test_house.py). Markup is off: brackets and `:smile:` in data are printed as they are.

Each character is handled alone, so an escape sequence that is split over chunks is cleaned too.

A terminal may hold one live line (status_line.py), which is drawn over; whatever is printed here erases it first.
"""

import io
import logging
import os
import re
import select
import shutil
import sys
import traceback
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, Any, Literal, final

from rich.cells import set_cell_size
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment
from rich.text import Text

from lmgym.masking import masked

VERBOSE = os.environ.get("LMGYM_VERBOSE", "") not in ("", "0")
"""True if the informative logs and warnings of other libraries are shown too"""
if not VERBOSE:  # on a CPU it advises another package whenever peft imports it
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
LONGEST_LINE = 2000
JOINERS = "\u200c\u200d"  # scripts and emoji need them, and they are harmless
PICTURES = {0x7F: "\u2421"} | {code: chr(0x2400 + code) for code in range(0x20)}
# Cc: C0 and C1, with which escape sequences and OSC begin; Cf: bidi marks, tags, invisible characters; Cs: lone
# surrogates; Zl, Zp: unexpected line breaks; Cn, Co: undefined for the terminal
UNSAFE = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp", "Cn", "Co"))


def clean(text: str) -> str:
    """The text with every control, bidi and invisible character as a picture or `<U+202E>`; lines stay lines."""
    if text.isprintable():  # no character of such a text is of a category in UNSAFE
        return text
    return "".join(map(_shown, text))


_given: dict[str, str] = {}


def print_as_given(path: str, given: str) -> None:
    """From here on, an absolute path is printed as the user gave it, and so is what lies below it."""
    if path != given:
        _given[path] = given


def as_given(text: str) -> str:
    """The text with paths as the user gave them."""
    for path in sorted(_given, key=len, reverse=True):
        if path in text:
            given = _given[path].replace("\\", r"\\")
            text = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w-])", given, text)
    return text


def _presented(text: str) -> str:
    return as_given(masked(text))


def clean_line(text: str) -> str:
    """The clean text on one line, with its line breaks as pictures."""
    return clean(text).replace("\n", PICTURES[0x0A])


def printed_line(text: str) -> str:
    """Text as `say` prints it: clean, without secrets, on one line, and cut at LONGEST_LINE, with its length."""
    text = _presented(text.rstrip())
    line = clean_line(text[:LONGEST_LINE])
    if len(text) <= LONGEST_LINE and len(line) <= LONGEST_LINE:
        return line
    return f"{line[:LONGEST_LINE]}… ({len(text):,} characters)"


def say(text: object = "", error: bool = False, file: IO[str] | None = None) -> None:
    """Prints one line to stdout, to stderr with `error`, or to `file`."""
    erase_live_line()
    stream = file or (sys.stderr if error else sys.stdout)
    with reader_may_leave(stream):
        print(printed_line(str(text)), file=stream, flush=True)


@contextmanager
def reader_may_leave(stream: IO[str] | None = None) -> Iterator[None]:
    """Prints to a pipe, stdout by default, whose reader may have closed it, as `head` does: the run goes on."""
    stream = stream or sys.stdout
    try:
        try:
            yield
        finally:
            if stream is not None:  # Python's stdout is None if it was closed at the start
                stream.flush()
    except BrokenPipeError:
        print_to_nowhere(stream)


def print_to_nowhere(stream: IO[str]) -> None:
    """Leaves out what is still printed to a stream."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def readers_left() -> list[IO[str]]:
    """Those of stdout and stderr that are pipes without a reader."""
    left: list[IO[str]] = []
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError, ValueError):  # no file of the operating system
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                left.append(stream)
    return left


def on_terminal() -> bool:
    """True if stdout and stderr are terminals on which a line can be drawn over."""
    return sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def live_width() -> int:
    """Columns of the live line; one less than the terminal's, where it would wrap."""
    return shutil.get_terminal_size((80, 24)).columns - 1


_live = False


def draw_live_line(text: str) -> None:
    """Draws the live line over the one before, cut to the terminal's width. For a terminal only."""
    global _live
    text, width = clean_line(_presented(text)), live_width()
    print(f"\r{set_cell_size(text, width).rstrip()}\x1b[K", end="", file=sys.stderr, flush=True)
    _live = True


def erase_live_line() -> None:
    """Erases the live line, if there is one."""
    global _live
    if _live:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    _live = False


class _EraseFirst(RenderHook):
    """Erases the live line before a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        erase_live_line()
        return renderables


@final
class CleanConsole(Console):
    """A rich console that cleans all text before the layout: of prints, cells, titles and rules."""

    def __init__(
        self,
        width: int | None = None,
        file: IO[str] | None = None,
        color_system: Literal["auto", "standard"] | None = "auto",
        force_terminal: bool | None = None,
    ) -> None:
        super().__init__(
            width=width,
            file=file,
            color_system=color_system,
            force_terminal=force_terminal,
            markup=False,
            emoji=False,
            highlight=False,
        )
        self.push_render_hook(_EraseFirst())

    def on_broken_pipe(self) -> None:
        """A reader that has left is no error, and does not end a run, as rich's own method would."""
        print_to_nowhere(self.file)

    def render_str(self, text: str, **settings: Any) -> Text:
        """rich's Text of a clean string without secrets; the settings are rich's."""
        return super().render_str(clean(_presented(text)), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of anything that rich can show; control segments are rich's own and stay."""
        if isinstance(renderable, Text):
            renderable = self._cleaned(renderable)
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(clean(segment.text), segment.style)

    def _cleaned(self, text: Text) -> Text:
        """A styled text with clean characters and without secrets: rich measures and wraps what is displayed."""
        if clean(_presented(text.plain)) == text.plain:
            return text
        parts = [(clean(_presented(segment.text)), segment.style or "") for segment in text.render(self)]
        return Text.assemble(
            *parts, justify=text.justify, overflow=text.overflow, no_wrap=text.no_wrap, end=text.end, style=text.style
        )


CONSOLE = CleanConsole(max(80, min(120, shutil.get_terminal_size((100, 20)).columns)))


def replace_unencodable(*streams: IO[str]) -> None:
    """Makes streams print a question mark, rather than fail, for a character that their encoding lacks."""
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def show_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """`sys.excepthook` of launches: Python's traceback on stderr, cleaned because exceptions quote data."""
    for entry in traceback.format_exception(kind, error, trace):
        for line in entry.splitlines():
            say(line, error=True)


def _shown(character: str) -> str:
    if character == "\n" or character in JOINERS or unicodedata.category(character) not in UNSAFE:
        return character
    if character == "\t":
        return "  "
    return PICTURES.get(ord(character)) or f"<U+{ord(character):04X}>"
