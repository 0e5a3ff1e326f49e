"""`lmgym eval`: what a model can do, by the tasks of lm-eval, with an interval for each figure."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lmgym.config import CAPABILITIES_BATCH
from lmgym.console import CONSOLE, say
from lmgym.errors import shown_path
from lmgym.runs.files import write_json, write_lines
from lmgym.runs.launch import launch
from lmgym.runs.layout import model_of


@dataclass(frozen=True)
class Options:
    """Settings of the tasks, and the folder of the results."""

    data: str | None = None
    limit: int | None = None
    batch_size: int = CAPABILITIES_BATCH
    max_new_tokens: int | None = None
    chat_template: bool | None = None
    output: str | None = None


@click.command("eval")
@click.argument("model")
@click.option(
    "--suite", required=True, metavar="TASK,...", help="tasks by name, task files (.yaml), or folders of them"
)
@click.option("--data", metavar="TASK=FILE,...", help="rows of a task: .jsonl, .jsonl.gz, .parquet or .csv")
@click.option("--limit", type=click.IntRange(1), help="most rows of a task  [default: all]")
@click.option(
    "--batch_size",
    "--batch-size",
    type=click.IntRange(1),
    default=CAPABILITIES_BATCH,
    show_default=True,
    help="rows at once",
)
@click.option("--max_new_tokens", type=click.IntRange(1), help="most tokens of a reply  [default: as the task says]")
@click.option(
    "--chat_template/--no_chat_template",
    default=None,
    help="put each question into the model's chat template  [default: if the model has one]",
)
@click.option("--output", help="folder for the results  [default: outputs/capabilities/MODEL]")
def evaluate(model: str, suite: str, **options: Any) -> None:
    """Test what a model can do by lm-eval's tasks: GSM8K, IFEval, MMLU and others.

    MODEL is a model's folder, an adapter's, a run's, or a hub id. Tasks by name read their rows from the hub; others
    are files. lm-eval is an extra: pip install 'lmgym[capabilities]'.
    """
    launch(lambda: evaluate_model(model, suite, Options(**options)))


def evaluate_model(model: str, suite: str, options: Options) -> None:
    """Runs the tasks on a model, prints a table and writes results.json and the replies. Raises InputError."""
    from lmgym.generation.local_generation import load_causal
    from lmgym.models.sources import refuse_served
    from lmgym.scoring.named_scorers import name_of
    from lmgym.statistics import notes
    from lmgym.training.capabilities import Suite, figures_table, load_tasks

    refuse_served(model, "log-probabilities of given texts")
    tasks = load_tasks(suite, options.data)
    folder = model_of(model)
    generator = load_causal(folder)
    template = options.chat_template
    if template is None:
        template = has_template(folder, generator.tokenizer)
    given = Suite(tasks, options.limit, options.batch_size, options.max_new_tokens, template, quiet=False)
    say(f"{folder}: questions {'in its chat template' if template else 'as plain text'}", error=True)
    found = given.measure(generator.model, generator.tokenizer)
    CONSOLE.print(figures_table(found.estimates))
    for note in notes(found.estimates.values(), "row"):
        say(note)
    output = Path(options.output or f"outputs/capabilities/{name_of(folder)}").expanduser()
    output.mkdir(parents=True, exist_ok=True)
    samples = found.results.pop("samples")
    for task, rows in samples.items():
        write_lines(output / f"{task}.jsonl", rows)
    figures = {name: vars(one) for name, one in found.estimates.items()}
    settings = {"model": folder, "suite": suite, **vars(options), "chat_template": template}
    write_json(output / "results.json", {"figures": figures, "settings": settings, "lm_eval": found.results})
    say(f"results, and each reply, in {shown_path(output)}")


def has_template(folder: str, tokenizer: Any) -> bool:
    """False for a tokenizer without a template of its own: the flat one counts where a run has saved it."""
    from lmgym.text import flat_template_note

    return not flat_template_note(tokenizer) or (Path(folder).expanduser() / "chat_template.jinja").is_file()
