"""What a training run tells people, whatever the stage: the plan before, the table after."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from lmgym.config import StageConfig
from lmgym.console import CONSOLE, printed_line, say
from lmgym.engine import engine_name, world_size
from lmgym.probes import Probe, Report, full_name
from lmgym.rejections import Tally
from lmgym.run import Run
from lmgym.task_data import TaskData


def show_plan(
    config: StageConfig, precision: str, max_length: int, data: TaskData, accumulation: int, deepspeed: dict | None
) -> None:
    """A line of data, one of rejected rows and one of how it will run."""
    o, counts = config.optimizer, data.counts
    in_last_turn = f" ({data.shortened:,} of them in their last turn)" if data.shortened else ""
    unused = f", {counts['unused_rows']:,} beyond the limits" if counts.get("unused_rows") else ""
    say(
        f"{len(data.train):,} {data.noun} to train on, {len(data.evaluation):,} to evaluate on; "
        f"{data.truncated:,} truncated to {max_length} tokens{in_last_turn}{unused}"
    )
    show_rejections(data.tally)
    say(
        f"{engine_name(deepspeed)}, {world_size()} rank(s), {precision}; "
        f"{o.global_batch} {data.noun} an update = "
        f"{world_size()} x {accumulation} micro-batches of {o.micro_batch}; results in {config.output}"
    )


def show_rejections(found: Tally) -> None:
    """How many rows are rejected and why, and the warning where they are too many."""
    say(found.line)
    show_warning(found)


def show_warning(found: Tally) -> None:
    """In bold, where so many rows are rejected that people should look at the data."""
    if found.warning:
        CONSOLE.print(printed_line(found.warning), style="bold yellow", soft_wrap=True)


def show_notes(notes: Sequence[str]) -> None:
    """A line on each thing that people should know of."""
    for note in notes:
        say(note)


def show_table(title: str, probes: Mapping[str, Probe]) -> None:
    """What the probes measured last: the held-out examples first, then each other; and what is not defined, and why."""
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    for name, probe in probes.items():
        if name:
            table.add_section()
        for row in _table_rows(name, probe):
            table.add_row(*row)
    CONSOLE.print(table)
    for name, probe in probes.items():
        for metric, reason in probe.report.undefined.items():
            if metric not in probe.report.metrics and (not name or metric in probe.shown):
                say(f"{full_name(name, metric)}: not defined here, {reason}")


def _table_rows(name: str, probe: Probe) -> list[tuple[str, str]]:
    m, rows = probe.report.metrics, []
    for metric, label in probe.shown.items():
        if metric == "accuracy" and "accuracy_low" in m:
            interval = f"{m['accuracy']:.3f} ({m['accuracy_low']:.3f}-{m['accuracy_high']:.3f})"
            rows.append(("accuracy (95% interval over prompts)", interval))
        elif metric in m:
            rows.append((f"{name}: {label}" if name else label, f"{m[metric]:.3f}"))
    return rows


def write_evaluation(report: Report, run: Run) -> None:
    """`evaluation.json`: what was measured, what is not defined, and what was left out of a figure."""
    missing = {name: why for name, why in report.undefined.items() if name not in report.metrics}
    left_out = {name: why for name, why in report.undefined.items() if name in report.metrics}
    run.write_json("evaluation.json", {"metrics": report.metrics, "undefined": missing, "left_out": left_out})
