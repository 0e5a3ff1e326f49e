"""The commands here for an entry of NYU's debate project: an experiment, a config of training, or a prompt set."""

from collections.abc import Iterator
from pathlib import Path

from lmgym.apps.migration.commands import Translation
from lmgym.apps.migration.nyu_entries import list_entries, read_entry
from lmgym.apps.migration.nyu_prompts import is_prompt_set, translate_prompts
from lmgym.apps.migration.nyu_tournaments import translate_experiment
from lmgym.apps.migration.nyu_training import translate_training
from lmgym.console import say
from lmgym.errors import InputError, listed, shown, shown_path


def of_nyu(file: Path, words: tuple[str, ...], trainer: str | None) -> Iterator[Translation]:
    """The commands for an entry; where none of several is named, prints the command that reads each of them.

    Raises InputError for a file that is none of the project's, and for an entry without agents or a model.
    """
    entry = read_entry(file, words)
    if isinstance(entry, list):
        for line in list_entries(file, entry):
            say(line)
        return
    if "agents" in entry.values:
        yield from translate_experiment(entry)
    elif {"model_name", "training_hyperparameters"} <= entry.values.keys():
        yield from translate_training(entry, trainer)
    elif is_prompt_set(entry.values):
        yield from translate_prompts(entry)
    else:
        raise InputError(
            f"{shown_path(file)}, entry {shown(entry.name)} has {listed(entry.values)}; needed: agents, as of an "
            "experiment, model_name and training_hyperparameters, or tags with their content, as of prompts.yaml"
        )
