"""The words and tables of a report: what was run, how it ended, what it cost, and what was warned of."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lmgym.report.costs import costs
from lmgym.report.curves import first_of
from lmgym.report.key_figures import (
    NONE_YET,
    BeforeAndAfter,
    after_update,
    before_and_after,
    main_metric,
    why_none,
)
from lmgym.report.known_metrics import MAIN_METRICS, definition, metric_of, title_of
from lmgym.report.panels import Card, Panel, Table, duration, figure
from lmgym.report.run_files import Row, RunFiles, is_number
from lmgym.report.samples import shown
from lmgym.shell import quote
from lmgym.statistics import FEW

CARDS = (
    *MAIN_METRICS,
    "eval/length_accuracy",
    "eval/accuracy_above_length",
    "eval/token_accuracy",
    "eval/nll",
    "eval/loss",
    "train/loss",
    "eval/eval_scorer",
    "kl/reference",
    "eval/diversity/openings",
    "eval/rollout/reply_tokens",
    "eval/samples/tokens",
)
"""figures at the top of a report, each with its value before the first update"""
MOST_NOTES = 200
OUTCOMES = {
    "finished": ("good", "finished"),
    "running": ("neutral", "running, as this page was written"),
    "interrupted": ("warn", "interrupted, can be resumed"),
    "killed": ("bad", "killed"),
}
CAUSES = {
    "collapsed": "stopped: the policy collapsed",
    "non_finite": "stopped: a loss or gradient that is not finite",
    "stalled": "stopped: no progress",
    "rewards_failed": "stopped: too many rewards failed",
    "server_failed": "stopped: the server that samples failed",
}


def cards(run: RunFiles) -> list[Card]:
    """The run's main figures, what it cost, and its data."""
    found = [card for name in CARDS if (card := _card(run, name))]
    found += costs(run)
    rows = run.record.get("data", {}).get("train_rows")
    return [*found, Card("training rows", figure(rows))] if is_number(rows) else found


def _card(run: RunFiles, name: str) -> Card | None:
    """The figure of a metric; None if it was not measured."""
    metric = metric_of(name, run.stage)
    if metric is None or not run.series(name):
        return None
    before, after = figures_of(run, name)
    first, about = figure(before[1]) if before else "", definition(name, run.stage)
    if after is None:
        return Card(metric.title, NONE_YET, first, about, "measured before training only")
    update, value, *ends = after
    if metric.of_data:
        return Card(metric.title, figure(value), "", about, "of the held-out rows, not of the model")
    interval = f"95%: {figure(ends[0])} to {figure(ends[1])} over {metric.over}" if ends else ""
    return Card(metric.title, figure(value), first, about, ", ".join(filter(None, (after_update(update), interval))))


def figures_of(run: RunFiles, names: str) -> BeforeAndAfter:
    """A figure before training, where that says something, and of the model that is kept; names as in `points_of`."""
    name, points = first_of(run, names)
    found, metric = before_and_after(points, run.kept_update), metric_of(name, run.stage)
    if metric is not None and metric.of_data and points:
        return BeforeAndAfter(None, points[-1])
    return found._replace(before=None) if metric is not None and metric.before_updates else found


def no_result(run: RunFiles) -> str:
    """Why a run that was evaluated before training has no result; empty if it has one or was not evaluated."""
    if main_metric(run.metric_names, run.stage) is None or measured_after(run) is not None:
        return ""
    return why_none(outcome(run.record)[1].partition(", ")[0], run.updates)


def measured_after(run: RunFiles) -> float | None:
    """The update after which the result of a run was measured; None without one."""
    metric = main_metric(run.metric_names, run.stage)
    after = None if metric is None else figures_of(run, metric.name).after
    return None if after is None else after[0]


def few_prompts(run: RunFiles) -> int:
    """The number of held-out prompts if they are too few to rely on, else 0."""
    prompts = run.series("eval/prompts")
    return int(prompts[-1][1]) if prompts and prompts[-1][1] < FEW else 0


def outcome(record: Mapping[str, Any]) -> tuple[str, str]:
    """(class of the badge, words) of how a launch ended."""
    name = str(record.get("outcome", "unknown"))
    return OUTCOMES.get(name) or ("bad", CAUSES.get(name, f"failed ({name})" if name != "failed" else "failed"))


def ending(run: RunFiles) -> list[str]:
    """Sentences on how the run ended, and on its resumption."""
    record, updates = run.record, run.updates
    how, comma, more = outcome(record)[1].partition(", ")
    found = [f"{how.capitalize()} after {_count(updates)} update{'' if updates == 1 else 's'}{comma}{more}."]
    if no_result(run):
        found.append(
            "No result yet: the trained model was not evaluated. Figures of held-out rows and replies are of the model "
            "before training."
        )
    if run.kept_update is not None:
        metric = shown(title_of(f"eval/{run.best_metric}", run.stage).removeprefix("eval/"))
        found.append(
            f"model/ is the model after update {run.kept_update:,}, the best by {metric}: the figures are its own."
        )
    if few := few_prompts(run):
        found.append(f"Only {few} prompts are held out; {FEW} or more are needed to rely on a figure.")
    if record.get("error"):
        is_error = record.get("outcome") != "interrupted"
        found.append(f"{'Error: ' * is_error}{shown(record['error']).removeprefix('RunStopped: ')}")
    if is_number(record.get("stopped_early")):
        found.append(f"Stopped early after update {record['stopped_early']:,}, because it no longer improved.")
    resumed = [launch["resumed_at"] for launch in run.launches if is_number(launch.get("resumed_at"))]
    if resumed:
        places = ", ".join(f"{update:,}" for update in resumed)
        found.append(
            f"Resumed {len(resumed)} time{'s' if len(resumed) > 1 else ''}, from the checkpoint after update {places}."
        )
    return found


def _when(step: object) -> str:
    return after_update(step) if is_number(step) else shown(step)


def _count(number: object) -> str:
    """A number of a file as it is printed; of another value its form."""
    return f"{number:,}" if is_number(number) else shown(number)


def notes(run: RunFiles) -> list[Panel]:
    """Warnings and alarms, with the update at which they occurred; then the other notes."""
    kinds = {"alarm": 0, "warning": 1}
    events = sorted(run.events, key=lambda event: kinds.get(str(event.get("kind")), 2))
    rows = [
        (
            str(event.get("kind", "note")),
            _when(event.get("step", 0)).replace(" ", "\N{NO-BREAK SPACE}"),
            _without_kind(shown(event.get("text", ""))),
        )
        for event in events[:MOST_NOTES]
    ]
    rows += [("report", "", problem) for problem in run.problems]
    if not rows:
        return []
    about = "Dashed lines in the curves are warnings and alarms, a solid line is the model that is kept."
    return [Panel("notes", "Warnings and notes", about, table=Table(("", "", ""), rows), wide=True)]


def _without_kind(text: str) -> str:
    return text[len("warning: ") :] if text.startswith("warning: ") else text


def launches(run: RunFiles) -> list[Panel]:
    """A table of the launches of a run that was resumed."""
    if len(run.launches) < 2:
        return []
    rows = []
    for record in run.launches:
        start = record.get("resumed_at")
        began = f"update {start:,}" if is_number(start) else "the beginning"
        rows.append(
            (
                shown(record.get("started", "")),
                began,
                outcome(record)[1],
                _seconds(record),
                shown(record.get("error") or ""),
            )
        )
    columns = ("started", "from", "ended", "took", "error")
    return [
        Panel(
            "launches",
            "Launches",
            "Each launch continues from the last checkpoint of the one before.",
            table=Table(columns, rows),
            wide=True,
        )
    ]


def _seconds(record: Row) -> str:
    return duration(record["seconds"]) if is_number(record.get("seconds")) else "–"


def settings(run: RunFiles) -> list[Panel]:
    """The command, the machine and the versions; then every setting."""
    record = run.record
    if not record:
        return []
    git, versions = record.get("git") or {}, record.get("versions") or {}
    changed = ", with uncommitted changes" if git.get("dirty") else ""
    commit = f"{git.get('commit', 'unknown')}{changed}" if git else "–"
    rows = [
        ("command", shown(_command(record))),
        ("commit", shown(commit)),
        ("machine", _machine(record)),
        ("started", shown(record.get("started", ""))),
        ("ended", shown(record.get("ended") or "–")),
        ("versions", shown(", ".join(f"{name} {version}" for name, version in versions.items() if version))),
        ("weights", _weights(record)),
        ("fingerprint of the data", shown(record.get("data_fingerprint") or "–")),
    ]
    config = [(shown(name), shown(setting_text(value))) for name, value in (record.get("config") or {}).items()]
    return [
        Panel("run", "Run", table=Table(("", ""), rows), wide=True),
        Panel(
            "config",
            "Every setting",
            "Each is a flag of the experiment.",
            table=Table(("setting", "value"), config),
            wide=True,
        ),
    ]


def _command(record: Row) -> str:
    """The command of a run, from wherever it is typed."""
    typed, folder = str(record.get("command") or ""), record.get("cwd")
    return f"cd {quote(str(folder))} && {typed}" if typed and folder else typed


def _machine(record: Row) -> str:
    ranks, cores, gpus = record.get("world_size", 1), record.get("cores"), record.get("gpu_names")
    parts = [record.get("host"), f"{cores} cores" if cores else "", f"{ranks} rank{'s' if ranks != 1 else ''}"]
    return shown(", ".join([*map(str, filter(None, parts)), *map(str, gpus if isinstance(gpus, list) else [])]))


def _weights(record: Row) -> str:
    total, trained = record.get("parameters"), record.get("trainable_parameters")
    return f"{total:,}, of which {trained:,} trained" if is_number(total) and is_number(trained) else "–"


def setting_text(value: Any) -> str:
    """A value of a config: text as it is, other values as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def data(run: RunFiles) -> list[Panel]:
    """Counts of rows, rejected rows by reason, and the first of them."""
    counts = run.record.get("data") or {}
    plain = [(name.replace("_", " "), f"{value:,}") for name, value in counts.items() if is_number(value)]
    panels = [Panel("rows", "Rows", table=Table(("", "number"), plain, frozenset({1})))] if plain else []
    reasons = [
        (shown(reason), _count(number), why)
        for key, why in (("rejected_by_reason", "rejected"), ("not_needed_by_reason", "not needed"))
        for reason, number in (counts.get(key) or {}).items()
    ]
    if not reasons and run.rejected:
        reasons = [
            (shown(r), f"{n:,}", "rejected") for r, n in Counter(str(x.get("reason")) for x in run.rejected).items()
        ]
    if reasons:
        table = Table(("reason", "rows", ""), reasons, frozenset({1}))
        panels.append(Panel("rejected", "Rows that are not used", "All are in rejected.jsonl.", table=table))
        examples = [
            (
                f"{shown(row.get('file'))}, line {row.get('line')}",
                shown(row.get("reason")),
                shown(row.get("found"))[:300],
            )
            for row in _one_per_reason(run.rejected)
        ]
        about = "The first row of each reason."
        if examples:
            panels.append(
                Panel("rejected_rows", "Examples", about, table=Table(("row", "reason", "found"), examples), wide=True)
            )
    return panels


def _one_per_reason(rows: Sequence[Row]) -> list[Row]:
    first: dict[Any, Row] = {}
    for row in rows:
        first.setdefault(row.get("reason"), row)
    return list(first.values())[:20]


def metric_table(run: RunFiles) -> list[Panel]:
    """Every metric: its first, lowest, highest and last value."""
    rows = []
    for name in run.metric_names:
        if series := run.series(name):
            values = [value for _, value in series]
            numbers = (values[0], min(values), max(values), values[-1])
            rows.append((shown(name), *map(figure, numbers), str(len(values)), definition(name, run.stage)))
    table = Table(("metric", "first", "lowest", "highest", "last", "lines", "meaning"), rows, frozenset(range(1, 6)))
    return [Panel("metrics", "Every metric", "From metrics.jsonl.", table=table, wide=True)] if rows else []
