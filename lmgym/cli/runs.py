"""`lmgym runs`: the runs under a folder as a table, with the commands that resume those that did not finish."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from lmgym.cli.listing import DEPTH, ListedRun, Listing, list_runs
from lmgym.console import CONSOLE, say
from lmgym.errors import one_line, shown_path
from lmgym.runs.launch import STAGES, launch
from lmgym.runs.record import REDACTED

MOST_PROBLEMS = 10
MOST_COMMAND = 20_000
"""characters of a command that is printed"""


@click.command()
@click.argument("folder", default="outputs", metavar="[FOLDER]")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object per run")
def runs(folder: str, as_json: bool) -> None:
    """List the runs in a folder, the newest first: outcome, result, cost, and the command that resumes each.

    FOLDER is `outputs` unless it is named; runs are found up to four folders below it.
    """
    launch(lambda: show_runs(folder, as_json))


def show_runs(folder: str, as_json: bool) -> None:
    """Prints the runs of a folder. Raises InputError if there is no such folder."""
    root = Path(folder).expanduser()
    listing = list_runs(root)
    if as_json:
        for run in listing.runs:
            CONSOLE.print(json.dumps(_fields(run)), soft_wrap=True)
    elif listing.runs:
        CONSOLE.print(_table(root, listing.runs))
        _show_unfinished(listing.runs)
    else:
        say(f"no run is in {shown_path(root)} or up to {DEPTH} folders below it; `lmgym runs FOLDER` looks elsewhere")
    _show_problems(listing, error=as_json)


def _table(root: Path, runs: Sequence[ListedRun]) -> Table:
    table = Table(title=f"runs in {shown_path(root)}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("run", overflow="fold", min_width=18)
    table.add_column("stage", no_wrap=True)
    table.add_column("outcome", min_width=len("interrupted"))
    for name in ("result", "cost", "began (UTC)"):
        table.add_column(name, min_width=11)
    for run in runs:
        table.add_row(
            _title(root, run),
            _stage(run),
            _outcome(run),
            _result(run),
            _cost(run),
            one_line(run.text("started")[5:16].replace("T", " "), 16),
        )
    return table


def _title(root: Path, run: ListedRun) -> str:
    """The folder below the root, and the experiment's name if the folder has another one."""
    name = one_line(run.text("name"), 60)
    folder = shown_path(run.folder.relative_to(root) if run.folder != root else root)
    return f"{folder} ({name})" if name and name != run.folder.name else folder


def _stage(run: ListedRun) -> str:
    """Its name in `lmgym train`; empty if it is none of these."""
    return next((name for name, package in STAGES.items() if package == run.text("stage")), "")


def _outcome(run: ListedRun) -> str:
    resumed = int(run.cost["launches"]) - 1
    return one_line(run.outcome, 20) + (f", resumed {resumed} time{'s' * (resumed != 1)}" if resumed else "")


def _result(run: ListedRun) -> str:
    if run.metric is None:
        return ""
    before, after = ("" if value is None else f"{value:.3g}" for value in (run.before, run.after))
    return f"{run.metric.label} {before}{' -> ' if before and after else ''}{after}"


def _cost(run: ListedRun) -> str:
    """`1.4 h GPU`, or CPU: 3 GPUs for 10 minutes cost 30 minutes."""
    cost = run.cost
    kind = "GPU" if cost["gpu_seconds"] else "CPU"
    seconds = cost[f"{kind.lower()}_seconds"]
    if not seconds:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s {kind}"
    return f"{seconds / 60:.0f} min {kind}" if seconds < 5400 else f"{seconds / 3600:.1f} h {kind}"


def _show_unfinished(runs: Sequence[ListedRun]) -> None:
    """For each run that did not finish: why, and on a line of its own the command that resumes it."""
    for run in runs:
        if run.unfinished:
            error = one_line(run.text("error").removeprefix("RunStopped: "), 400)
            command, note = resume_command(run)
            say()
            say(f"{shown_path(run.folder)}: {one_line(run.outcome, 20)}{f': {error}' if error else ''}; {note}")
            if command:
                CONSOLE.print(command, soft_wrap=True)


def resume_command(run: ListedRun) -> tuple[str, str]:
    """(the shell's command that resumes a run, a note on it); the command is empty if it is not known.

    A launcher's own command is not recorded, only a rank's: it becomes that of `lmgym launch`.
    """
    recorded, where = run.text("command"), shown_path(run.folder / "run.json")
    if len(recorded) > MOST_COMMAND:
        return "", f"its command has {len(recorded):,} characters; it is in {where}"
    try:
        words = shlex.split(recorded)
    except ValueError:
        words = []
    if not words:
        return "", f"its command is not in {where}"
    ranks, local_ranks = run.record.get("world_size", 1), run.record.get("local_world_size")
    from_scratch = "this starts it again, since it has no checkpoint"
    note = from_scratch if run.checkpoint is None else f"this resumes it from update {run.checkpoint}"
    if local_ranks not in (None, ranks):
        note += f", by the launcher of before on every node ({one_line(str(local_ranks), 20)} ranks each)"
    elif ranks != 1 or any(word.startswith("--local_rank") for word in words):
        script = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
        if script is None or not isinstance(ranks, int):
            note += f", by the launcher of before ({one_line(str(ranks), 20)} ranks)"
        else:
            flags = [word for word in words[script + 1 :] if not word.startswith("--local_rank=")]
            words = ["lmgym", "launch", "--num_gpus", str(ranks), words[script], *flags]
    if any(REDACTED in word for word in words):
        note += f", with the values that are {REDACTED} here"
    folder = run.text("cwd")
    go = f"cd {quote(folder)} && " if folder and folder != os.getcwd() else ""
    return go + " ".join(map(quote, words)), f"{note}:"


def quote(word: str) -> str:
    """A word as the shell reads it, on one line and without control characters, for which bash and zsh have $'...'."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in "'\\":
        return f"\\{character}"
    code = ord(character)
    return character if character.isprintable() else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _show_problems(listing: Listing, error: bool) -> None:
    problems = listing.problems
    if not problems:
        return
    say(error=error)
    say(f"{len(problems):,} could not be read:", error=error)
    for problem in problems[:MOST_PROBLEMS]:
        say(f"  {problem}", error=error)
    if len(problems) > MOST_PROBLEMS:
        say(f"  and {len(problems) - MOST_PROBLEMS:,} more", error=error)


def _fields(run: ListedRun) -> dict[str, Any]:
    """The object of --json."""
    texts = {name: run.text(name) or None for name in ("name", "started", "ended", "error")}
    cost = run.cost
    return {
        "folder": str(run.folder),
        **texts,
        "stage": _stage(run) or None,
        "outcome": run.outcome,
        "resumed": int(cost.pop("launches")) - 1,
        "metric": run.metric and run.metric.name,
        "before": run.before,
        "after": run.after,
        **cost,
        "checkpoint": run.checkpoint,
        "resume_command": (run.unfinished and resume_command(run)[0]) or None,
    }
