"""What an SFT run tells people and leaves behind: rows as the model sees them, samples, the folder with its card."""

import json
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback

from lmgym.console import CONSOLE, say
from lmgym.data.task_data import TaskData
from lmgym.data.truncation import describe_truncation
from lmgym.distributed.ranks import rank
from lmgym.models.forward.policies import save_policy
from lmgym.runs.run import Run
from lmgym.training.probes import join_reports
from lmgym.training.reporting import figures_table, overfitting, show_notes, show_table, write_evaluation
from sft.config import SftConfig
from sft.probes import SampleProbe
from sft.tasks import SftTask
from sft.tokenization import Example


def show_rows(examples: list[Example], tokenizer) -> None:
    """Rows as the model will see them: what it is to predict stands in brackets."""
    for example in examples:
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(example.replies.dropped_turns, example.replies.shortened)
        title = f"{len(example.ids)} tokens, {len(example.targets)} of them to predict{lost and f', {lost}'}:"
        CONSOLE.print(Text(title, "bold"))
        CONSOLE.print(marked(example, tokenizer), soft_wrap=True)


def marked(example: Example, tokenizer) -> str:
    """A row's text with its targets in brackets, also what is predicted and not read: an eos within a chat."""
    pieces: list[str] = []
    context: list[int] = [example.ids[0]]
    output: list[int] = []
    target_at = dict(zip(example.places, example.targets, strict=True))

    def close() -> None:
        if output:
            pieces.append(f"[{tokenizer.decode(output)}]")
            output.clear()

    for place, following in enumerate([*example.ids[1:], None]):
        target = target_at.get(place)
        if target is not None and not output:
            pieces.append(tokenizer.decode(context))
            context.clear()
        if target is not None:
            output.append(target)
        if target != following:
            close()
            if following is not None:
                context.append(following)
    close()
    return "".join(pieces) + tokenizer.decode(context)


class KeepSamples(TrainerCallback):
    """Writes what was answered at each evaluation to samples/, a file an update."""

    def __init__(self, probe: SampleProbe, run: Run) -> None:
        self.probe, self.run = probe, run

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """After the probes."""
        if self.probe.rows:
            rows = [{"step": state.global_step, **row} for row in self.probe.rows]
            self.run.write_lines(f"samples/{state.global_step:06d}.jsonl", rows)


def show_results(config: SftConfig, data: TaskData, trainer, seconds: float, folder: Path) -> None:
    """The short table at a run's end, and the last answers to the fixed prompts."""
    show_table(f"{config.name}: {len(data.evaluation):,} held-out rows", trainer.probes, trainer.before)
    show_notes(overfitting(trainer.losses))
    samples = trainer.probes.get("samples")
    if samples is not None and samples.rows:
        _show_samples(samples)
    say(f"{seconds:.0f} s of training and evaluation; the policy: {folder}")


def _show_samples(probe: SampleProbe) -> None:
    table = Table(title=f"answers to the fixed prompts: {probe.settings}", title_justify="left")
    for name in ("prompt", "reply"):
        table.add_column(name, overflow="fold")
    for name in ("tokens", "end", *probe.scorers):
        table.add_column(name, justify="right")
    for row in probe.rows:
        prompt = row["prompt"].removesuffix("\nBot:").rpartition("\n")[2]
        scores = [f"{row['scores'][name]:.3f}" for name in probe.scorers]
        table.add_row(prompt, row["reply"], str(row["tokens"]), row["finish"], *scores)
    CONSOLE.print(table)


def save_results(config: SftConfig, task: SftTask, trainer, tokenizer, run: Run) -> Path:
    """The policy's folder, `evaluation.json` and `held_out.jsonl`; the weights are gathered on all ranks."""
    state = trainer.whole_state()
    if rank() != 0:
        return run.folder
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped).model
    folder = save_policy(model, state, run.folder, tokenizer, config.merge_adapter)
    report = join_reports({name: probe.report for name, probe in trainer.probes.items()})
    samples = trainer.probes.get("samples")
    drawn = f"\nReplies to the fixed prompts (`samples/`) were drawn at {samples.settings}.\n" if samples else ""
    card = model_card(config, task, report.metrics, trainer.before, folder.name) + drawn
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_evaluation(report, trainer.before, run)
    with (run.folder / "held_out.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in trainer.probes[""].lines())
    return folder


def model_card(
    config: SftConfig, task: SftTask, metrics: Mapping[str, float], before: Mapping[str, float], kind: str
) -> str:
    """A README for the policy's folder: what it is, how to talk to it, what was measured."""
    what = "A LoRA adapter of" if kind == "adapter" else "A causal language model, trained from"
    return f"""---
library_name: {"peft" if kind == "adapter" else "transformers"}
pipeline_tag: text-generation
tags:
- lmgym
---

# {config.name}

{what} `{config.policy.model}`: lmgym on `{config.data.dataset}` with the {task.loss},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}. Rows had up to
{config.data.max_length} tokens. Render a chat with the tokenizer's own chat template
(`add_generation_prompt=True`) and tokenize it with `add_special_tokens=False`; a reply ends with an eos token.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```

## Measured on held-out data

{figures_table(metrics, before)}
"""
