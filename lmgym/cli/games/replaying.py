"""`lmgym replay` and `lmgym games data`: recorded episodes played again, and as rows for SFT."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lmgym.cli.results.reports import run_folder
from lmgym.config import Range
from lmgym.console import say
from lmgym.environments.recorded import FOLDER, Selection, training_rows
from lmgym.errors import MOST_SCORE, InputError, shown_path
from lmgym.report.run_files import RunFiles
from lmgym.runs.files import read_json, write_lines

DROPPED = ("--local_rank", "--deepspeed", "--output", "--tracking", "--resume", "--dry_run")
"""flags of a run that its replay, which trains nothing, leaves out"""


def replay_episode(words: str) -> None:
    """Becomes the run's experiment with `--replay`. Raises InputError for a file that is no run's."""
    command, folder = replay_command(words)
    say(f"$ {shlex.join(command)}")
    sys.stdout.flush()
    os.chdir(folder)
    os.execv(command[0], command)


def replay_command(words: str) -> tuple[list[str], Path]:
    """(the command that replays FILE.jsonl or FILE.jsonl:LINE, the folder to run it in).

    It is the command of the file's run, on one process and with `--replay`.
    """
    name, colon, number = words.rpartition(":")
    path, line = (Path(name), number) if colon and number.isdecimal() else (Path(words), "1")
    if not path.is_file():
        raise InputError(f"there is no {shown_path(path)}; needed: episodes/NAME.jsonl of a run, or NAME.jsonl:LINE")
    run = path.resolve().parent.parent
    try:
        record = read_json(run / "run.json")
        recorded, folder = shlex.split(record["command"]), Path(record["cwd"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{shown_path(run / 'run.json')} does not name the experiment ({error}); needed: the folder of a PPO run, "
            "as it was written"
        ) from error
    script = next((i for i, word in enumerate(recorded) if word.endswith(".py")), None)
    if script is None or not (folder / recorded[script]).is_file():
        found = "names no experiment's file" if script is None else f"names {shown_path(folder / recorded[script])}"
        raise InputError(
            f"{shown_path(run / 'run.json')} {found}, which is needed to replay its episodes: put it there"
        )
    flags = _without(recorded[script + 1 :], DROPPED)
    return [sys.executable, recorded[script], *flags, "--replay", f"{path.resolve()}:{line}"], folder


def _without(flags: list[str], names: tuple[str, ...]) -> list[str]:
    """Flags with their values, less those of these names."""
    kept: list[str] = []
    dropping = False
    for word in flags:
        if word.startswith("--"):
            dropping = word.partition("=")[0].replace("-", "_").replace("__", "--", 1) in names
        if not dropping:
            kept.append(word)
    return kept


def write_training_data(name: str, min_return: float, kind: str, agent: str, output: str) -> None:
    """Writes the replies of a run's good episodes as rows for SFT, and says how many were left out and why."""
    Range(-MOST_SCORE, MOST_SCORE).check("min_return", min_return)
    folder = run_folder(name)
    files = sorted((folder / FOLDER).glob("*.jsonl" if kind == "all" else f"{kind}-*.jsonl"))
    if not files:
        raise InputError(
            f"{shown_path(folder / FOLDER)} has no recorded episodes of {kind}; needed: a PPO run's folder"
        )
    run, refused = RunFiles(folder), Counter[str]()

    def games() -> Iterator[dict[str, Any]]:
        for path in files:
            for game in run.lines(f"{FOLDER}/{path.name}"):
                if isinstance(game.get("agents"), dict) and isinstance(game.get("returns"), dict):
                    yield game

    rows = list(training_rows(games(), Selection(min_return, agent), refused))
    left_out = ", ".join(f"{number:,} for {reason}" for reason, number in refused.most_common())
    if not rows:
        raise InputError(
            f"no reply is left: {left_out or 'no episodes'}; needed: a lower --min_return than {min_return:g}"
        )
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, rows)
    for problem in run.problems:
        say(problem, error=True)
    say(f"{path}: {len(rows):,} rows for `lmgym train sft chat --dataset {path}`; left out: {left_out or 'none'}")
