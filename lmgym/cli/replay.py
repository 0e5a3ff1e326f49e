"""`lmgym replay`: the command of a run again, on one process, to play a recorded episode."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from lmgym.errors import InputError, one_line, shown_path
from lmgym.runs.files import read_json
from lmgym.runs.launch import STAGES, launch
from lmgym.runs.launching import become, experiments, find_experiment

DROPPED = ("--local_rank", "--deepspeed", "--output", "--tracking", "--resume", "--dry_run")
"""flags of a run that its replay, which trains nothing, leaves out"""
CODE = ("--trust_remote_code",)
"""flags that run code: the user gives them again"""


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
            raise InputError(f"the run's file is none of lmgym's experiments; needed, to run it: {again}")
    kept = [] if script is None else recorded[script + 1 :]
    if _without(kept, CODE) != kept and _without(list(flags), CODE) == list(flags):
        again = f"lmgym replay {shlex.quote(shown_path(words))} --trust_remote_code"
        raise InputError(
            f"the run has --trust_remote_code, which runs code that comes with the model; needed, to run it: {again}"
        )
    command = [sys.executable, str(file), *_without(kept, (*DROPPED, *CODE)), *flags]
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


def _without(flags: Sequence[str], names: tuple[str, ...]) -> list[str]:
    """Flags with their values, less those of these names."""
    kept: list[str] = []
    dropping = False
    for word in flags:
        if word.startswith("--"):
            dropping = word.partition("=")[0].replace("-", "_").replace("__", "--", 1) in names
        if not dropping:
            kept.append(word)
    return kept
