"""What an SFT run tells people and leaves behind: rows as the model sees them, samples, the folder with its card."""

from pathlib import Path
from typing import Literal

from rich.text import Text
from transformers import TrainerCallback

from lmgym.console import CONSOLE, say
from lmgym.data.task_data import TaskData
from lmgym.data.truncation import left_out
from lmgym.distributed.ranks import rank
from lmgym.models.forward.policies import save_policy
from lmgym.runs.run import Run
from lmgym.training.model_card import CHAT_USAGE, figures_table, model_card
from lmgym.training.reporting import overfitting, show_notes, show_samples, show_table, write_evaluation
from sft.config import SftConfig
from sft.probes import SampleProbe
from sft.tasks import SftTask
from sft.tokenization import Example


def show_rows(examples: list[Example], tokenizer) -> None:
    """Rows as the model will see them: what it is to predict stands in brackets."""
    for example in examples:
        CONSOLE.rule(example.origin, style="dim")
        lost = left_out(example.replies.dropped_turns, example.replies.shortened)
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
    """Prints the table of figures at a run's end, and the last answers to the fixed prompts."""
    show_table(f"{config.name}: {len(data.evaluation):,} held-out rows", trainer.probes, trainer.before)
    show_notes(overfitting(trainer.losses))
    samples = trainer.probes.get("samples")
    if samples is not None and samples.rows:
        cells = [
            {"tokens": str(row["tokens"]), "end": row["finish"], **{n: f"{x:.3f}" for n, x in row["scores"].items()}}
            for row in samples.rows
        ]
        show_samples(f"answers to the fixed prompts: {samples.settings}", samples.rows, cells)
    say(f"{seconds:.0f} s of training and evaluation; the policy: {folder}")


def save_results(config: SftConfig, task: SftTask, trainer, tokenizer, run: Run) -> Path:
    """The policy's folder, `evaluation.json` and `held_out.jsonl`; the weights are gathered on all ranks."""
    state = trainer.whole_state()
    if rank() != 0:
        return run.folder
    folder = save_policy(trainer.module.model, state, run.folder, tokenizer, config.merge_adapter)
    samples = trainer.probes.get("samples")
    drawn = f"\n\nReplies to the fixed prompts (`samples/`) were drawn at {samples.settings}." if samples else ""
    figures = figures_table(trainer.report().metrics, trainer.before) + drawn
    card = policy_card(config, task, figures, is_adapter=folder.name == "adapter")
    (folder / "README.md").write_text(card, encoding="utf-8")
    write_evaluation(trainer.report(), trainer.before, run)
    run.write_lines("held_out.jsonl", trainer.probes[""].lines())
    return folder


def policy_card(config: SftConfig, task: SftTask, figures: str, is_adapter: bool) -> str:
    """The model card of the policy or of its adapter."""
    kind = "A LoRA adapter of" if is_adapter else "A causal language model, trained from"
    description = f"""{kind} `{config.policy.model}`: lmgym on `{config.data.dataset}` with the {task.loss},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}. Rows had up to
{config.data.max_length} tokens. {CHAT_USAGE}

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
```"""
    library: Literal["peft", "transformers"] = "peft" if is_adapter else "transformers"
    return model_card(config.name, "text-generation", ["lmgym"], description, figures, library=library)
