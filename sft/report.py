"""Output of an SFT run: rows as the model sees them, samples, the table of figures, the policy's folder."""

from pathlib import Path

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
from sft.config import SftConfig
from sft.tasks import SftTask
from sft.tokenization import Example


def show_rows(examples: list[Example], tokenizer) -> None:
    """Prints rows as the model will see them, with targets in brackets."""
    for example in examples:
        CONSOLE.rule(example.origin, style="dim")
        lost = describe_truncation(example.replies.dropped_turns, example.replies.shortened)
        title = f"{len(example.ids)} tokens, {len(example.targets)} of them to predict{lost and f', {lost}'}:"
        CONSOLE.print(Text(title, "bold"))
        CONSOLE.print(marked(example, tokenizer), soft_wrap=True)


def marked(example: Example, tokenizer) -> str:
    """A row's text with its targets in brackets, including those that are not read: an eos within a chat."""
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


def show_results(config: SftConfig, data: TaskData, trainer, seconds: float, folder: Path) -> None:
    """Prints the table of figures at a run's end, and the saved model's answers to the fixed prompts."""
    update = trainer.best.update
    title = f"{config.name}, after update {update:,}: {len(data.evaluation):,} held-out rows"
    show_table(title, trainer.probes, trainer.best.report, trainer.before)
    show_notes(trainer.best.notes(trainer), trainer.run)
    show_answers(trainer.probes.get("samples"), folder, update)
    policy = folder / ("adapter" if _is_adapter(config) else "model")
    say(f"{seconds:.0f} s of training and evaluation; the policy: {policy}, {trainer.best.closing(trainer)}")


def save_results(config: SftConfig, task: SftTask, tokenizer, run: Run, trainer, name: SavedModel, which: str) -> None:
    """The present policy, as `model/` and `adapter/` with the held-out rows' losses, or as `last/` alone.

    `which` says in a sentence which model it is. The weights are gathered on all ranks.
    """
    state = trainer.whole_state()
    if rank() != 0:
        return
    samples = trainer.probes.get("samples")
    drawn = f"\n\nReplies to the fixed prompts (`samples/`) were drawn at {samples.settings}." if samples else ""
    figures = f"{which}\n\n{figures_table(trainer.report().metrics, trainer.before)}{drawn}"
    how = f"""lmgym on `{config.data.dataset}` with the {task.loss},
{config.optimizer.epochs:g} epoch(s) at learning rate {config.optimizer.learning_rate:g}. Rows had up to
{config.data.max_length} tokens."""
    card = policy_card(config.name, config.policy.model, how, figures, _is_adapter(config))
    save_policy(trainer.module.model, state, run.folder, tokenizer, config.merge_adapter, card, last=name == "last")
    if name == "model":
        run.write_lines("held_out.jsonl", trainer.probes[""].lines())


def _is_adapter(config: SftConfig) -> bool:
    """True if the folder to use is an adapter."""
    return config.policy.lora_rank > 0 and not config.merge_adapter
