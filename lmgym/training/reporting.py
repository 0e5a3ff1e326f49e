"""What a training run tells people, whatever the stage: the plan before, the table after."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from lmgym.config import StageConfig
from lmgym.console import CONSOLE, printed_line, say
from lmgym.data.rejections import Tally
from lmgym.data.task_data import TaskData
from lmgym.distributed.deepspeed_engine import engine_name
from lmgym.distributed.ranks import world_size
from lmgym.runs.run import Run
from lmgym.training.probes import Probe, Report, full_name


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


def show_table(title: str, probes: Mapping[str, Probe], before: Mapping[str, float]) -> None:
    """What the probes measured last: the held-out examples first, then each other; and what is not defined, and why.

    `before` has figures of before step 1 by their full names, which stand beside the last ones, with the change.
    """
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for column in ("before", "after", "change") if before else ("value",):
        table.add_column(column, justify="right")
    for name, probe in probes.items():
        if name:
            table.add_section()
        for row in _table_rows(name, probe, before):
            table.add_row(*row)
    CONSOLE.print(table)
    for name, probe in probes.items():
        for metric, reason in probe.report.undefined.items():
            if metric not in probe.report.metrics and (not name or metric in probe.shown):
                say(f"{full_name(name, metric)}: not defined here, {reason}")


def _table_rows(name: str, probe: Probe, before: Mapping[str, float]) -> Iterator[tuple[str, ...]]:
    now = probe.report.metrics
    then = {metric: before[full_name(name, metric)] for metric in now if full_name(name, metric) in before}
    for metric, label in probe.shown.items():
        if metric not in now:
            continue
        interval = metric == "accuracy" and "accuracy_low" in now
        said = "accuracy (95% interval)" if interval else f"{name}: {label}" if name else label
        if not before:
            yield said, _cell(metric, now)
        elif metric not in then:
            yield said, "", _cell(metric, now), ""
        else:
            yield said, _cell(metric, then), _cell(metric, now), f"{now[metric] - then[metric]:+.3f}"


def _cell(metric: str, metrics: Mapping[str, float]) -> str:
    value = f"{metrics[metric]:.3f}"
    if metric == "accuracy" and "accuracy_low" in metrics:
        return f"{value} ({metrics['accuracy_low']:.3f}-{metrics['accuracy_high']:.3f})"
    return value


def overfitting(losses: Mapping[int, float]) -> list[str]:
    """A line where the held-out loss, known after so many updates, was lower than it is after the last of them."""
    if not losses:
        return []
    best, last = min(losses, key=lambda update: (losses[update], update)), max(losses)
    if f"{losses[best]:.4g}" == f"{losses[last]:.4g}":
        return []
    when = f"after update {best}" if best else "before training"
    return [
        f"warning: the held-out loss was lowest {when}: {losses[best]:.4g}, and is {losses[last]:.4g} after update "
        f"{last}, the last; the saved model is the last (--max_updates or --epochs ends a run earlier)"
    ]


def figures_table(metrics: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Measured figures by name as a Markdown table, beside those before step 1 where there are any."""
    if not before:
        return "\n".join(["| measure | value |", "|---|---|", *(f"| {n} | {v:.4f} |" for n, v in metrics.items())])
    first = {name: f"{before[name]:.4f}" if name in before else "" for name in metrics}
    rows = [f"| {name} | {first[name]} | {value:.4f} |" for name, value in metrics.items()]
    return "\n".join(["| measure | before training | after |", "|---|---|---|", *rows])


def write_evaluation(report: Report, before: Mapping[str, float], run: Run) -> None:
    """`evaluation.json`: what was measured, also before step 1, what is not defined, what was left out of a figure."""
    missing = {name: why for name, why in report.undefined.items() if name not in report.metrics}
    left_out = {name: why for name, why in report.undefined.items() if name in report.metrics}
    content = {"metrics": report.metrics, "before": dict(before), "undefined": missing, "left_out": left_out}
    run.write_json("evaluation.json", content)
