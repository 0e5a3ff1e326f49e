"""What a reward-model run tells people: the plan before, the table after, the folder with its model card."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lmgym.engine import engine_name, rank, world_size
from lmgym.models import save_classifier
from lmgym.run import Run
from reward_models.config import RewardConfig
from reward_models.evaluations import Evaluation
from reward_models.pair_metrics import PairReport as Report
from reward_models.probes import HeldOut, Probe
from reward_models.tasks import Task, TaskData

CONSOLE = Console(width=max(80, min(120, shutil.get_terminal_size((100, 20)).columns)), highlight=False)

MEANINGS = {
    "logit": "the head's one output",
    "softmax[1]": "the probability of class 1, `softmax(logits)[:, 1]`",
    "mean_sigmoid": "the mean of the labels' probabilities, `sigmoid(logits).mean(-1)`",
}
READINGS = {
    "logit": "`logits[:, 0]`",
    "softmax[1]": "`logits.softmax(-1)[:, 1]`",
    "mean_sigmoid": "`logits.sigmoid().mean(-1)`",
}


def show_plan(config: RewardConfig, data: TaskData, accumulation: int, deepspeed: dict | None) -> None:
    """One line of data and one of how it will run."""
    o, counts = config.optimizer, data.counts
    unused = f", {counts['unused_rows']:,} beyond the limits" if counts.get("unused_rows") else ""
    CONSOLE.print(
        f"{len(data.train):,} {data.noun} to train on, {len(data.evaluation):,} to evaluate on; "
        f"{data.truncated:,} cut on the left to {config.data.max_length} tokens, "
        f"{counts['rejected_rows']:,} rows rejected{unused}",
        soft_wrap=True,
    )
    CONSOLE.print(
        f"{engine_name(deepspeed)}, {world_size()} rank(s), {config.scorer.precision}; "
        f"{o.global_batch} {data.noun} an update = "
        f"{world_size()} x {accumulation} micro-batches of {o.micro_batch}; results in {config.output}",
        soft_wrap=True,
    )


def show_start(notes: Sequence[str]) -> None:
    """A line on each thing that people should know of before the first update."""
    for note in notes:
        CONSOLE.print(note, soft_wrap=True)


def show_absent(folder: str, evaluation: Evaluation) -> None:
    """One line of an evaluation that cannot be made."""
    CONSOLE.print(f"{folder} has no {evaluation.file}.parquet or .jsonl: not judged on it", soft_wrap=True)


def show_rows(examples: Sequence[Any], task: Task, tokenizer) -> None:
    """Examples as the model will see them, with their token counts."""
    for example in examples:
        prefix, tails = example.replies.prefix, example.replies.tails
        CONSOLE.rule(example.origin, style="dim")
        cut = f"({example.replies.truncated} cut on the left)"
        if len(tails) == 1:  # nothing is shared
            title = f"{task.tails(example)[0]}, {len(prefix) + len(tails[0])} tokens {cut}"
            CONSOLE.print(f"[bold]{title}:[/bold] {escape(repr(tokenizer.decode(prefix + tails[0])))}")
            continue
        title = f"shared, {len(prefix)} tokens {cut}"
        CONSOLE.print(f"[bold]{title}:[/bold] {escape(repr(tokenizer.decode(prefix)))}")
        for name, tail in zip(task.tails(example), tails, strict=True):
            title = f"{name}, {len(tail)} more = {len(prefix) + len(tail)} tokens"
            CONSOLE.print(f"[bold]{title}:[/bold] {escape(repr(tokenizer.decode(tail)))}")


def show_results(
    config: RewardConfig, data: TaskData, probes: Mapping[str, Probe], seconds: float, folder: Path
) -> None:
    """The short table at a run's end: the held-out examples first, then each evaluation set."""
    table = Table(title=f"{config.name}: {len(data.evaluation):,} held-out {data.noun}", title_justify="left")
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
                CONSOLE.print(f"{_full(name, metric)}: not defined here, {reason}", soft_wrap=True)
    CONSOLE.print(f"{seconds:.0f} s of training and evaluation; the scorer: {folder / 'model'}", soft_wrap=True)


def _table_rows(name: str, probe: Probe) -> list[tuple[str, str]]:
    m, rows = probe.report.metrics, []
    for metric, label in probe.shown.items():
        if metric == "accuracy" and "accuracy_low" in m:
            interval = f"{m['accuracy']:.3f} ({m['accuracy_low']:.3f}-{m['accuracy_high']:.3f})"
            rows.append(("accuracy (95% interval over prompts)", interval))
        elif metric in m:
            rows.append((f"{name}: {label}" if name else label, f"{m[metric]:.3f}"))
    return rows


def _full(probe: str, metric: str) -> str:
    return f"{probe}/{metric}" if probe else metric


def save_results(config: RewardConfig, task: Task, trainer, tokenizer, run: Run) -> None:
    """The model's folder, `evaluation.json` and `scores.jsonl`; the weights are gathered on all ranks."""
    state = trainer.whole_state()
    if rank() != 0:
        return
    held_out: HeldOut = trainer.probes[""]
    scores = held_out.scores
    scorer = {
        "reduce": task.reduce,
        "max_length": config.data.max_length,
        "moments": [float(scores.mean()), max(float(scores.std()), 1e-6)],
    }
    folder = run.folder / "model"
    save_classifier(trainer.accelerator.unwrap_model(trainer.model_wrapped).model, state, folder, tokenizer, scorer)
    report = join_reports({name: probe.report for name, probe in trainer.probes.items()})
    (folder / "README.md").write_text(model_card(config, task, report.metrics), encoding="utf-8")
    missing = {name: why for name, why in report.undefined.items() if name not in report.metrics}
    left_out = {name: why for name, why in report.undefined.items() if name in report.metrics}
    run.write_json("evaluation.json", {"metrics": report.metrics, "undefined": missing, "left_out": left_out})
    with (run.folder / "scores.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in held_out.lines())


def join_reports(reports: Mapping[str, Report]) -> Report:
    """One report of all probes' figures by their full names."""
    return Report(
        {_full(probe, name): value for probe, report in reports.items() for name, value in report.metrics.items()},
        {_full(probe, name): why for probe, report in reports.items() for name, why in report.undefined.items()},
    )


def model_card(config: RewardConfig, task: Task, metrics: Mapping[str, float]) -> str:
    """A README for the model's folder: what it is, what its score means, how to use it, what was measured."""
    figures = "\n".join(f"| {name} | {value:.4f} |" for name, value in metrics.items())
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-classification"}
    head = "\n".join(f"{key}: {value}" for key, value in metadata.items())
    return f"""---
{head}
tags:
- reward-model
- lmgym
---

# {config.name}

A reward model: one number a reply, higher is better. The number is {MEANINGS[task.reduce]}.
Trained with lmgym from `{config.scorer.model}` on `{config.data.dataset}` with the {task.loss},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}.

```python
from lmgym.scorers import HFScorer
from lmgym.text import Conversation, Turn

scorer = HFScorer.load("path/to/this/folder")
scorer.score([Conversation((Turn("user", "Hello!"),))], ["Hi, how are you?"])
```

It is an ordinary `AutoModelForSequenceClassification` with `num_labels={task.outputs}`: render a chat with the
tokenizer's own chat template, tokenize it with `add_special_tokens=False` (encoders: True), and read
{READINGS[task.reduce]}. Texts longer than {config.data.max_length} tokens were cut on the left.

## Measured on held-out data

| measure | value |
|---|---|
{figures}
"""
