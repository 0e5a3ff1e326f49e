"""The line that shows how far a run or a command is, and how long it will still take.

On a terminal it is one live line, drawn over. Elsewhere there is none: with `plain`, an ordinary line is printed now
and then instead, so that a command of many minutes does not look dead in a log.

Not rich.progress (measured with rich 15.0): it has no time left for steps of more than 30 seconds, drops the counts
before the figures on 40 columns, breaks lines that are printed beside it, and leaves a killed run without a cursor.
"""

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import final

from rich.cells import cell_len

from lmgym.aids import aid
from lmgym.console import draw_live_line, erase_live_line, live_width, on_terminal, say
from lmgym.report.key_figures import after_update
from lmgym.report.known_metrics import short_name

REDRAW_SECONDS, PLAIN_SECONDS = 0.2, 30.0
PRIOR_SECONDS = 20.0  # at the reference's pace, so that a first step of seconds alone does not set the pace


@final
class StatusLine:
    """The status of work of `total` steps, counted in `unit`. Erased when its `with` block ends.

    `name` is the usual activity, such as "training"; `shown` is False on ranks that print nothing.
    """

    def __init__(self, name: str, total: int, unit: str, shown: bool = True, plain: bool = False) -> None:
        self.name, self.total, self.unit = name, total, unit
        self._terminal = shown and on_terminal()
        self._plain = shown and plain and not self._terminal
        self._done, self._doing, self._figures = 0, "", list[str]()
        self._drawn = -math.inf if self._terminal else time.monotonic()
        self.begin(0)

    def begin(self, done: int) -> None:
        """Starts the clock of the time left, with the steps that are done already."""
        self.first = self._done = done
        self._began = self._changed = time.monotonic()

    @aid("the status line")
    def update(self, done: int | None = None, doing: str | None = None, figures: Sequence[str] | None = None) -> None:
        """Shows the steps done, the present activity and figures such as "loss 0.52"; None leaves them as they are.

        An activity of "" is the usual one.
        """
        now = time.monotonic()
        if done is not None and done != self._done:
            self._done, self._changed = done, now
        if figures is not None:
            self._figures = list(figures)
        changes = doing is not None and doing != self._doing
        if doing is not None:
            self._doing = doing
        if self._terminal and (changes or now - self._drawn >= REDRAW_SECONDS):
            self._drawn = now
            draw_live_line(fitted(self._parts(now), live_width()))
        elif self._plain and now - self._drawn >= PLAIN_SECONDS:
            self._drawn = now
            say(", ".join(self._parts(now)), error=True)

    def _parts(self, now: float) -> list[str]:
        made, left = self._done - self.first, self.total - self._done
        per_step = (self._changed - self._began) / made if made else None
        remaining = [] if per_step is None or not left else [f"{clock(per_step * left - (now - self._changed))} left"]
        counts = f"{self._doing or self.name}: {self._done:,}/{self.total:,} {self.unit}"
        return [counts, *remaining, *self._figures]

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal:
            erase_live_line()


@final
class StepTimes:
    """The time left of several steps, from their seconds on a reference machine and what this machine took so far."""

    def __init__(self, reference: Sequence[float]) -> None:
        self.reference = reference
        self.taken: list[float | None] = []
        """of each step so far; None if it was already done"""
        self._began = time.monotonic()

    @property
    def number(self) -> str:
        """The number of the present step among all: [3/8]."""
        return f"[{len(self.taken) + 1}/{len(self.reference)}]"

    def begin(self) -> None:
        """Starts the present step."""
        self._began = time.monotonic()

    def end(self) -> None:
        """Ends the present step."""
        self.taken.append(self.elapsed)

    def skip(self) -> None:
        """The present step is already done."""
        self.taken.append(None)

    @property
    def elapsed(self) -> float:
        """Seconds of the present step."""
        return time.monotonic() - self._began

    def left(self, elapsed: float) -> tuple[float, float]:
        """Seconds left of the present step, `elapsed` seconds after its beginning, and of all together."""
        pairs = [(took, r) for took, r in zip(self.taken, self.reference, strict=False) if took is not None]
        pace = (sum(took for took, _ in pairs) + PRIOR_SECONDS) / (sum(r for _, r in pairs) + PRIOR_SECONDS)
        present, *later = self.reference[len(self.taken) :]
        pace = max(pace, elapsed / present)  # a step that takes longer than expected
        return pace * present - elapsed, pace * (present + sum(later)) - elapsed


def status_figure(name: str, value: float, update: int) -> str:
    """A metric for the line by its title: `loss 0.52`, `900 tokens/s`; a figure of held-out rows stays for
    many updates, and says after which it was measured.
    """
    if name.endswith("/tokens_per_second"):
        return f"{value:,.0f} {short_name(name)}"
    when = f" {after_update(update)}" if name.startswith("eval/") else ""
    return f"{short_name(name)} {value:.3g}{when}"


def fitted(parts: Sequence[str], width: int) -> str:
    """The first part, and of the others, in order, those for which `width` columns have room."""
    line = parts[0]
    for part in parts[1:]:
        if cell_len(line) + 2 + cell_len(part) <= width:
            line += f", {part}"
    return line


def clock(seconds: float) -> str:
    """A duration as a clock shows it: 0:07, 12:30, 1:02:03; never negative."""
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
