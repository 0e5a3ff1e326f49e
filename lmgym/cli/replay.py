"""`lmgym replay`: the command of a run again, on one process, to play a recorded episode.

A run's folder may come from elsewhere. So of its command only ALLOWED settings are taken, which name no code, address
or key, and of these no value that could be code or an address (lmgym/origin.py), and an environment whose name is
neither (`Scheme.is_own`). What is left out is said; the user can give it again.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import click

from lmgym.config import ColumnConfig
from lmgym.console import say
from lmgym.errors import InputError, one_line, shown_path
from lmgym.origin import names_code_or_address, origin_of, refuse
from lmgym.runs.files import read_json
from lmgym.runs.launch import STAGES, launch
from lmgym.runs.launching import become, experiments, find_experiment

ALLOWED = {
    *("model", "prompts", "prompt_weights", "prompt_split", "eval_prompts", "eval_size", "split_by"),
    *("seed", "split_seed"),
    *("num_rollouts", "num_generations", "max_new_tokens", "max_prompt", "long_prompts", "policy_over", "stop"),
    *(f.name for f in fields(ColumnConfig)),
}
"""settings of a run that decide what is played"""
OF_TRAINING = {
    *("local_rank", "deepspeed", "output", "tracking", "resume", "dry_run", "num_gpus", "master_port", "replay"),
}
"""settings that a replay has no use for, left out without a word"""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("episode", metavar="EPISODE.jsonl[:LINE]")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
@click.option("--experiment", metavar="FILE_OR_NAME", help="the run's experiment, if it is none of lmgym's own")
def replay(episode: str, flags: tuple[str, ...], experiment: str | None) -> None:
    """Play a recorded episode again, turn by turn; exit code 1 if an observation or a reward differs.

    EPISODE.jsonl is a file of RUN/episodes; LINE is 1 unless it is named. The replies are those of the record: nothing
    is sampled. FLAGS are added to those of the run.
    """
    launch(lambda: replay_episode(episode, experiment, flags))


def replay_episode(words: str, experiment: str | None, flags: Sequence[str]) -> None:
    """Becomes the run's experiment with `--replay`. Raises InputError for a file that is no run's."""
    command, folder = replay_command(words, experiment, flags)
    os.chdir(folder)
    become(command)


def replay_command(words: str, experiment: str | None = None, flags: Sequence[str] = ()) -> tuple[list[str], Path]:
    """(the command that replays FILE.jsonl or FILE.jsonl:LINE, the folder to run it in).

    It is the command of the file's run, on one process and with `--replay` and further `flags`. A run's folder may come
    from elsewhere, so what runs is one of our own experiments, or the one that the user names.
    """
    name, colon, number = words.rpartition(":")
    path, line = (Path(name), number) if colon and number.isdecimal() else (Path(words), "1")
    if not path.is_file():
        raise InputError(f"there is no {shown_path(path)}; needed: episodes/NAME.jsonl of a run, or NAME.jsonl:LINE")
    record = path.resolve().parent.parent / "run.json"
    recorded, folder = _recorded(record)
    script = next((i for i, word in enumerate(recorded) if word.endswith(".py")), None)
    if experiment:
        file = find_experiment(experiment).resolve()
    elif script is None:
        raise InputError(f"{shown_path(record)} names no experiment's file; needed: --experiment FILE_OR_NAME")
    else:
        file = (folder / recorded[script]).resolve()
        if file not in {own.resolve() for stage in STAGES for own in experiments(stage).values()}:
            again = f"lmgym replay {shlex.quote(shown_path(words))} --experiment {shlex.quote(shown_path(file))}"
            refuse(origin_of(record), f"{shown_path(file)}, none of lmgym's experiments", f"to run it: {again}")
    kept, dropped = _allowed([] if script is None else recorded[script + 1 :])
    if dropped:
        say(
            f"left out of the run's settings: {' '.join(dropped)} (a replay scores nothing, and takes no code, address "
            "or key from a file); give them after the episode where they are needed",
            error=True,
        )
    command = [sys.executable, str(file), *kept, *flags]
    return [*command, "--replay", f"{path.resolve()}:{line}"], folder if folder.is_dir() else Path.cwd()


def _recorded(path: Path) -> tuple[list[str], Path]:
    """The words of a run's command, and its folder."""
    try:
        record = read_json(path)
        return shlex.split(record["command"]), Path(record["cwd"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{shown_path(path)} does not name the experiment ({one_line(str(error), 80)}); needed: the folder of a "
            "PPO run, as it was written"
        ) from error


def _allowed(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(flags that are taken, with their values; names of those that are left out and are no settings of training)."""
    from lmgym.environments.named import is_own  # which other commands do not need

    kept, dropped = list[str](), list[str]()
    for flag in _flags(words):
        name = flag[0].partition("=")[0].lstrip("-").replace("-", "_")
        own = name == "environment" and is_own(flag[-1].removeprefix("--environment="))
        if own or (name in ALLOWED and not any(map(names_code_or_address, flag))):
            kept += flag
        elif name not in OF_TRAINING:
            dropped.append(f"--{one_line(name, 40)}")
    return kept, dropped


def _flags(words: Sequence[str]) -> list[list[str]]:
    """Each flag with its values; words before the first flag are left out."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            found.append([word])
        elif found:
            found[-1].append(word)
    return found
