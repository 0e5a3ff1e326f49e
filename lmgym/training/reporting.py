"""Console output of a training run: notes, the table of figures, samples, warnings of a rising held-out loss."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from lmgym.aids import aid
from lmgym.console import CONSOLE, printed_line, say
from lmgym.data.rejections import Tally
from lmgym.runs.run import Run
from lmgym.statistics import ENDS
from lmgym.training.probes import Probe, Report, full_name

TIME_UNKNOWN = "time: not known before an update is measured; a run prints an estimate after its first ones"
HOUR, FEWEST_SECONDS = 3600.0, 10.0
RISES = 3  # evaluations in a row at which the held-out loss rises that are a warning


def show_rejections(found: Tally) -> None:
    """Prints how many rows are rejected and why, and the warning if they are too many."""
    show_notes([found.line, *filter(None, [found.warning])])


def show_notes(notes: Sequence[str], run: Run | None = None, step: int | None = None) -> None:
    """Prints each note on a line, warnings in bold. With a run only its main rank does, and the run records them.

    `step` is the update after which they came, by default that of the last metrics.
    """
    if run:
        run.note(*notes, step=step)
    for note in notes if run is None or run.is_main else []:
        if note.startswith("warning:"):
            CONSOLE.print(printed_line(note), style="bold yellow", soft_wrap=True)
        else:
            say(note)


def show_text(title: str, text: str) -> None:
    """Prints a text of a row as the model will see it, on one line, behind its title."""
    CONSOLE.print(Text.assemble((f"{title}: ", "bold"), repr(text)))


def show_samples(title: str, rows: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, str]]) -> None:
    """Prints a table of the rows' last user turn (of `prompt`) and `reply`, with further cells of each by column."""
    table = Table(title=title, title_justify="left")
    for name in ("prompt", "reply"):
        table.add_column(name, overflow="fold")
    columns = list(dict.fromkeys(column for row in cells for column in row))
    for name in columns:
        table.add_column(name, justify="right")
    for row, figures in zip(rows, cells, strict=True):
        prompt = row["prompt"].removesuffix("\nBot:").rpartition("\n")[2]
        table.add_row(prompt, row["reply"].strip(), *(figures.get(name, "") for name in columns))
    CONSOLE.print(table)


@aid("the table of figures")
def show_table(title: str, probes: Mapping[str, Probe], report: Report, before: Mapping[str, float]) -> None:
    """Prints a report's metrics by probe, those of held-out examples first, and reasons of undefined ones.

    `before` has the metrics before step 1 by full name: they are shown beside the others, with the change.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    has_interval = any(metric.endswith(ENDS) for metric in report.metrics)
    value = f"{'after' if before else 'value'}{' (95% interval)' if has_interval else ''}"
    for column in ("before", value, "change") if before else (value,):
        table.add_column(column, justify="right")
    for name, probe in probes.items():
        if name:
            table.add_section()
        for row in _table_rows(name, probe, report, before):
            table.add_row(*row)
    CONSOLE.print(table)
    for note in report.notes:
        say(note)
    own = {full_name(name, metric) for name, probe in probes.items() if name for metric in probe.shown}
    for metric, reason in report.undefined.items():
        has_note = metric.endswith(ENDS)
        if metric not in report.metrics and not has_note and ("/" not in metric or metric in own):
            say(f"{metric}: not defined here, {reason}")


def _table_rows(name: str, probe: Probe, report: Report, before: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    for metric, label in probe.shown.items():
        key = full_name(name, metric)
        if key not in report.metrics:
            continue
        shown, now, first = f"{name}: {label}" if name else label, report.metrics[key], before.get(key)
        if not before:
            yield shown, _cell(key, report)
        elif first is None:
            yield shown, "", _cell(key, report), ""
        else:
            yield shown, f"{first:.3f}", _cell(key, report), f"{now - first:+.3f}"


def _cell(metric: str, report: Report) -> str:
    value, low, high = (report.metrics.get(f"{metric}{end}") for end in ("", *ENDS))
    if low is not None and high is not None:
        return f"{value:.3f} ({low:.3f} to {high:.3f})"
    return f"{value:.3f} (–)" if f"{metric}_low" in report.undefined else f"{value:.3f}"


@aid("the estimate of the time left", list)
def time_left(
    steps: int, seconds: float, unit: str, evaluations: float, ways: str, updates_per_step: int = 1
) -> list[str]:
    """A line on how long the rest of a run takes: `steps` of so many seconds each, and `evaluations` seconds in all.

    `ways` are settings that make a step shorter, for a run of more than an hour. None for a few seconds.
    """
    total = steps * seconds + evaluations
    if total < FEWEST_SECONDS:
        return []
    minutes = f"{total / 60:.0f} min" if total >= 90 else f"{total:.0f} s"
    took = f"{total / HOUR:.1f} hours" if total > HOUR else minutes
    each = f"{seconds:.3g} s" + (f" and {evaluations:.0f} s of evaluations" if evaluations >= 0.5 else "")
    line = f"time: about {took} more, {steps:,} {unit} of {each}, measured here"
    if total <= HOUR:
        return [line]
    fitting = max(1, int((HOUR - min(evaluations, HOUR / 2)) / seconds)) * updates_per_step
    return [f"{line}; for about an hour: --max_updates {fitting}; or {ways}"]


@aid("the note on overfitting", list)
def overfitting(losses: Mapping[int, float], saved: str) -> list[str]:
    """A warning if the held-out loss, by number of updates, was lower before the last update than after it.

    `saved` says which model is saved.
    """
    if not losses:
        return []
    best, last = min(losses, key=lambda update: (losses[update], update)), max(losses)
    if f"{losses[best]:.4g}" == f"{losses[last]:.4g}":
        return []
    when = f"after update {best}" if best else "before training"
    return [
        f"warning: the held-out loss was lowest {when}: {losses[best]:.4g}, and is {losses[last]:.4g} after update "
        f"{last}, the last; {saved} (--early_stopping, --max_updates or --epochs ends a run earlier)"
    ]


@aid("the note on a rising loss", list)
def rising(losses: Mapping[int, float]) -> list[str]:
    """A warning once the held-out loss, by number of updates, has risen at RISES evaluations in a row."""
    updates = sorted(losses)
    values = [float(f"{losses[update]:.4g}") for update in updates]
    rises = [later > former for former, later in pairwise(values)]
    if rises[-RISES:] != [True] * RISES or rises[-RISES - 1 : -RISES] == [True]:  # or it was said before
        return []
    course = ", ".join(f"{value:.4g}" for value in values[-RISES - 1 :])
    return [
        f"warning: the held-out loss rose at {RISES} evaluations in a row, up to update {updates[-1]}: {course}; the "
        f"model overfits: stop here (--early_stopping {RISES} does), use a smaller learning rate or more data"
    ]
