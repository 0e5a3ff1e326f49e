"""Output of a preference run: rows as the model sees them, samples, the table of figures, the policy's folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from lmgym.console import CONSOLE, say
from lmgym.data.task_data import TaskData
from lmgym.data.truncation import describe_truncation
from lmgym.distributed.ranks import rank
from lmgym.models.forward.policies import save_policy
from lmgym.runs.run import Run
from lmgym.training.best import SavedModel
from lmgym.training.model_card import figures_table, policy_card
from lmgym.training.reporting import show_notes, show_table
from lmgym.training.samples import show_answers
from preferences.config import PreferenceConfig
from preferences.tasks import LOSSES, PreferenceTask


def show_rows(examples: Sequence[Any], task: PreferenceTask, tokenizer) -> None:
    """Prints the prompt and each reply as the model will see them; the loss is of the replies and their eos."""
    for example in examples:
        replies = example.replies
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(replies.dropped_turns, replies.shortened)
        prompt = [*replies.prefix, replies.suffixes[0][0]]
        _show_text(f"prompt, {len(prompt)} tokens{lost and f', {lost}'}", tokenizer.decode(prompt))
        for title, suffix in zip(task.titles(example), replies.suffixes, strict=True):
            text = tokenizer.decode([*suffix[1:], tokenizer.eos_token_id])
            _show_text(f"{title}, {len(suffix)} tokens to predict", text)


def _show_text(title: str, text: str) -> None:
    CONSOLE.print(Text.assemble((f"{title}: ", "bold"), repr(text)))


def show_results(config: PreferenceConfig, data: TaskData, trainer, seconds: float, folder: Path) -> None:
    """Prints the table of figures at a run's end, and the saved model's answers to the fixed prompts."""
    update = trainer.best.update
    title = f"{config.name}, after update {update:,}: {len(data.evaluation):,} held-out {data.noun}"
    show_table(title, trainer.probes, trainer.best.report, trainer.before)
    show_notes(trainer.best.notes(trainer), trainer.run)
    show_answers(trainer.probes.get("samples"), folder, update)
    policy = folder / ("adapter" if _is_adapter(config) else "model")
    say(f"{seconds:.0f} s of training and evaluation; the policy: {policy}, {trainer.best.closing(trainer)}")


def save_results(config: PreferenceConfig, tokenizer, run: Run, trainer, name: SavedModel, which: str) -> None:
    """The present policy, as `model/` and `adapter/` with the held-out rows' rewards, or as `last/` alone.

    `which` says in a sentence which model it is. The weights are gathered on all ranks.
    """
    state = trainer.whole_state()
    if rank() != 0:
        return
    samples = trainer.probes.get("samples")
    drawn = f"\n\nReplies to the fixed prompts (`samples/`) were drawn at {samples.settings}." if samples else ""
    figures = f"{which}\n\n{figures_table(trainer.report().metrics, trainer.before)}{drawn}"
    beta = "" if config.loss.loss == "orpo" else f" at beta {config.loss.strength:g}"
    how = f"""lmgym on `{config.data.dataset}` with the {LOSSES[config.loss.loss]}{beta},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}. Rows had up to
{config.data.max_length} tokens."""
    card = policy_card(config.name, config.policy.model, how, figures, _is_adapter(config))
    save_policy(trainer.module.model, state, run.folder, tokenizer, config.merge_adapter, card, last=name == "last")
    if name == "model":
        run.write_lines("scores.jsonl", trainer.probes[""].lines())


def _is_adapter(config: PreferenceConfig) -> bool:
    """True if the folder to use is an adapter."""
    return config.policy.lora_rank > 0 and not config.merge_adapter
