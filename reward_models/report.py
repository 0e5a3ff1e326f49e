"""What a reward-model run tells people: the plan before, the table after, the folder with its model card."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lmgym.engine import rank, world_size, zero_stage
from lmgym.models import save_classifier
from lmgym.run import Run
from reward_models.config import RewardConfig
from reward_models.data import PairExample
from reward_models.metrics import PairReport

CONSOLE = Console(width=max(80, min(120, shutil.get_terminal_size((100, 20)).columns)), highlight=False)


def show_plan(config: RewardConfig, counts: dict[str, int], accumulation: int, deepspeed: dict | None) -> None:
    """One line of data and one of how it will run."""
    o = config.optimizer
    how = f"ZeRO {zero_stage(deepspeed)}" if deepspeed else ("DDP" if world_size() > 1 else "plain")
    CONSOLE.print(
        f"{counts['train_pairs']:,} pairs to train on, {counts['eval_pairs']:,} to evaluate on; "
        f"{counts['truncated_pairs']:,} cut on the left to {config.data.max_length} tokens, "
        f"{counts['rejected_rows']:,} rows rejected",
        soft_wrap=True,
    )
    CONSOLE.print(
        f"{how}, {world_size()} rank(s), {config.scorer.precision}; {o.global_batch} pairs an update = "
        f"{world_size()} x {accumulation} micro-batches of {o.micro_batch}; results in {config.output}",
        soft_wrap=True,
    )


def show_rows(examples: Sequence[PairExample], tokenizer) -> None:
    """Pairs as the model will see them, with their token counts."""
    for example in examples:
        prefix, (chosen, rejected) = example.replies.prefix, example.replies.tails
        CONSOLE.rule(example.origin, style="dim")
        title = f"shared, {len(prefix)} tokens ({example.replies.truncated} cut on the left)"
        CONSOLE.print(f"[bold]{title}:[/bold] {escape(repr(tokenizer.decode(prefix)))}")
        for name, tail in (("chosen", chosen), ("rejected", rejected)):
            title = f"{name}, {len(tail)} more = {len(prefix) + len(tail)} tokens"
            CONSOLE.print(f"[bold]{title}:[/bold] {escape(repr(tokenizer.decode(tail)))}")


def show_results(
    config: RewardConfig, report: PairReport, counts: dict[str, int], seconds: float, folder: Path
) -> None:
    """The short table at a run's end."""
    m = report.metrics
    table = Table(title=f"{config.name}: {counts['eval_pairs']:,} held-out pairs", title_justify="left")
    table.add_column("measure")
    table.add_column("value", justify="right")
    rows = [("accuracy", f"{m['accuracy']:.3f}")]
    if "accuracy_low" in m:
        rows = [
            (
                "accuracy (95% interval over prompts)",
                f"{m['accuracy']:.3f} ({m['accuracy_low']:.3f}-{m['accuracy_high']:.3f})",
            )
        ]
    labels = {
        "margin_mean": "mean margin, chosen above rejected",
        "ece": "calibration error (ECE)",
        "brier": "Brier score",
        "score_length_correlation": "correlation of score and reply length",
        "accuracy_longer_rejected": "accuracy where the longer reply was rejected",
    }
    rows += [(label, f"{m[name]:.3f}") for name, label in labels.items() if name in m]
    for row in rows:
        table.add_row(*row)
    CONSOLE.print(table)
    for name, reason in report.undefined.items():
        CONSOLE.print(f"{name}: not defined here, {reason}")
    CONSOLE.print(f"{seconds:.0f} s of training and evaluation; the scorer: {folder / 'model'}", soft_wrap=True)


def save_results(config: RewardConfig, trainer, probe, tokenizer, run: Run) -> None:
    """The model's folder, `evaluation.json` and `scores.jsonl`; the weights are gathered on all ranks."""
    state = trainer.whole_state()
    if rank() != 0:
        return
    scores = probe.scores
    scorer = {
        "reduce": "logit",
        "max_length": config.data.max_length,
        "moments": [float(scores.mean()), max(float(scores.std()), 1e-6)],
    }
    folder = run.folder / "model"
    save_classifier(trainer.accelerator.unwrap_model(trainer.model_wrapped).model, state, folder, tokenizer, scorer)
    (folder / "README.md").write_text(model_card(config, probe.report), encoding="utf-8")
    run.write_json("evaluation.json", asdict(probe.report))
    with (run.folder / "scores.jsonl").open("w", encoding="utf-8") as lines:
        for example, (chosen, rejected) in zip(probe.examples, scores.tolist(), strict=True):
            row = {"prompt": example.prompt, "chosen": chosen, "rejected": rejected, "lengths": example.lengths}
            lines.write(json.dumps(row) + "\n")


def model_card(config: RewardConfig, report: PairReport) -> str:
    """A README for the model's folder: what it is, how to use it, what was measured."""
    figures = "\n".join(f"| {name} | {value:.4f} |" for name, value in report.metrics.items())
    metadata: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-classification"}
    head = "\n".join(f"{key}: {value}" for key, value in metadata.items())
    return f"""---
{head}
tags:
- reward-model
- lmgym
---

# {config.name}

A reward model: one number a reply, higher is better. Trained with lmgym from `{config.scorer.model}` on
`{config.data.dataset}` with the Bradley-Terry loss, {config.optimizer.epochs:g} epoch(s) at learning rate
{config.optimizer.learning_rate:g}.

```python
from lmgym.scorers import HFScorer
from lmgym.text import Conversation, Turn

scorer = HFScorer.load("path/to/this/folder")
scorer.score([Conversation((Turn("user", "Hello!"),))], ["Hi, how are you?"])
```

It is an ordinary `AutoModelForSequenceClassification` with `num_labels=1`: render a chat with the tokenizer's own
chat template, tokenize it with `add_special_tokens=False` (encoders: True), and read `logits[:, 0]`. Texts longer
than {config.data.max_length} tokens were cut on the left.

## Measured on held-out pairs

| measure | value |
|---|---|
{figures}
"""
