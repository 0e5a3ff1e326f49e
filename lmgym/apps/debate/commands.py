"""`lmgym debate`: a tournament by the name or path of its file, rows to train on, or the audit of a judge."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lmgym.console import say
from lmgym.errors import InputError, did_you_mean, shown, shown_path
from lmgym.runs.launch import launch
from lmgym.runs.launching import asks_for_help, become, files_importing, refuse_other_languages, summary

OLD_FLAGS = {
    "__num_iters": "--rounds N",
    "__configuration": "the experiment's name or file, as in `lmgym debate scripted`; of YAML: lmgym from nyu FILE",
    "__test": "an experiment without a model, such as `lmgym debate scripted --rounds 10`",
    "__local": "nothing: models run where they are loaded",
    "__log_level": "nothing",
    "__suppress_graphs": "nothing: figures are in results.json and report.html",
    "__start_time": "the same --output: a run that was killed goes on by itself",
    "__force_save_results": "nothing: results are always written",
    "__force_save_transcripts": "nothing: transcripts are always written",
}
"""flags of NYU's run_debate, and what has taken their place"""


# an experiment checks its own flags
@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("experiment", required=False, metavar="FILE_OR_NAME")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
def debate(experiment: str | None, flags: tuple[str, ...]) -> None:
    """Play debates: debaters, a judge, transcripts and figures. Without a name, list the experiments.

    FILE_OR_NAME --help lists an experiment's flags, such as --rounds, --output and --shard. `lmgym debate data FOLDER`
    writes rows to train debaters on.

    `lmgym debate audit JUDGE` shows what moves a judge though it says nothing about the answer. JUDGE is a model's
    folder or hub id, a served one (vllm:URL, vllm:FOLDER, openai:URL#MODEL), scorer:NAME (a reward model), letter:X,
    random, or FILE.py (the judge of that tournament).
    """
    if experiment == "data":
        from lmgym.apps.debate.training.command import data

        data.main(list(flags), "lmgym debate data", standalone_mode=False)
    elif experiment == "audit":
        from lmgym.apps.debate.audit.command import run_audit

        launch(lambda: run_audit(flags))
    else:
        launch(lambda: run_debate(experiment, flags))


def run_debate(name: str | None, flags: Sequence[str]) -> None:
    """Becomes the process of the experiment, or lists all of them without a name."""
    refuse_old_flags([name or "", *flags])
    if name is None:
        list_tournaments()
        return
    become([sys.executable, str(find_tournament(name)), *flags], shown=not asks_for_help(flags))


def tournaments() -> dict[str, Path]:
    """The files of the experiments, by name."""
    return {path.stem: path for path in files_importing("lmgym.apps.debate.tournament")}


def list_tournaments() -> None:
    """Prints the experiments with their summaries."""
    for name, path in tournaments().items():
        say(f"{name:12} {summary(path)}")


def find_tournament(name: str) -> Path:
    """The file of an experiment, by its name or its path. Raises InputError without one."""
    known = tournaments()
    if name in known:
        return known[name]
    path = Path(os.path.expanduser(name))
    refuse_other_languages(path)
    if name.endswith(".py") or "/" in name:
        if not path.is_file():
            raise InputError(f"there is no file {shown_path(name)}; available: {', '.join(known)}, or a path")
        return path
    suggestion = did_you_mean(name, known)
    raise InputError(
        f"there is no debate {shown(name)}; {suggestion}available: {', '.join(known)}, or a path/to/file.py"
    )


def refuse_old_flags(flags: Sequence[str]) -> None:
    """Raises InputError for flags of NYU's run_debate, with what has taken their place."""
    for flag in flags:
        name = flag.partition("=")[0].replace("-", "_")
        if name in OLD_FLAGS:
            raise InputError(f"{name.replace('__', '--')} is a flag of run_debate; needed: {OLD_FLAGS[name]}")
