"""The runs under a folder as a table, and for each the command to type next: resume, use or watch it."""

import json
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from lmgym.console import CONSOLE, say
from lmgym.errors import one_line, shown_path
from lmgym.report.key_figures import NONE_YET, after_update
from lmgym.runs.conclusion import next_command, stage_of
from lmgym.runs.launchers import PER_HOST
from lmgym.runs.listing import DEPTH, ListedRun, Listing, list_runs
from lmgym.runs.record import REDACTED
from lmgym.shell import command, quote, relative

MOST_PROBLEMS = 10
MOST_NEXT = 10
MOST_COMMAND = 20_000
"""characters of a command that is printed"""


def show_runs(folder: str, as_json: bool) -> None:
    """Prints the runs of a folder. Raises InputError if there is no such folder."""
    root = Path(folder).expanduser()
    listing = list_runs(root)
    if as_json:
        for run in listing.runs:
            CONSOLE.print(json.dumps(_fields(run, listing.runs)), soft_wrap=True)
    elif listing.runs:
        CONSOLE.print(_table(root, listing.runs))
        _show_unfinished(listing.runs)
        _show_next(listing.runs)
    else:
        say(f"no run is in {shown_path(root)} or up to {DEPTH} folders below it; `lmgym runs FOLDER` looks elsewhere")
    _show_problems(listing, error=as_json)


def _table(root: Path, runs: Sequence[ListedRun]) -> Table:
    title = f"runs in {shown_path(root)}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.show_edge = False
    # together at most 80 columns: longer names are folded
    table.add_column("run", overflow="fold", min_width=16)
    for name, width in (("outcome", 11), ("result", 24), ("cost", 10), ("began (UTC)", 11)):
        table.add_column(name, width=width)
    for run in runs:
        table.add_row(
            _title(root, run),
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
    return f"{folder} ({name})" if name and name not in run.folder.parts[-2:] else folder


def _outcome(run: ListedRun) -> str:
    resumed = int(run.cost["launches"]) - 1
    return one_line(run.outcome, 20) + (f", resumed {resumed} time{'s' * (resumed != 1)}" if resumed else "")


def _result(run: ListedRun) -> str:
    if run.metric is None:
        return ""
    before, after = ("" if value is None else f"{value:.3g}" for value in (run.before, run.after))
    interval = "" if run.interval is None else " ({:.3g} to {:.3g})".format(*run.interval)
    when = "" if run.measured_after is None else f" {after_update(run.measured_after)}"
    return f"{run.metric.label} {before}{' -> ' if before else ''}{after or NONE_YET}{interval}{when}"


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
            again, note = resume_command(run)
            say()
            say(f"{shown_path(run.folder)}: {one_line(run.outcome, 20)}{f': {error}' if error else ''}; {note}")
            if again:
                CONSOLE.print(again, soft_wrap=True)


def _show_next(runs: Sequence[ListedRun]) -> None:
    """The commands to type next: for the newest run of each name and stage that is finished or runs, and to compare it
    with the one before.
    """
    by_name: dict[tuple[str, str], list[ListedRun]] = {}
    for run in runs:
        if not run.unfinished:
            by_name.setdefault((run.text("stage"), run.text("name")), []).append(run)
    if by_name:
        say()
        say("next:")
    for same in list(by_name.values())[:MOST_NEXT]:
        CONSOLE.print(next_command(same[0], runs), soft_wrap=True)
        if len(same) > 1:
            folders = (relative(run.folder) for run in reversed(same[:2]))
            CONSOLE.print(command("lmgym", "compare", *folders), soft_wrap=True)
    if len(by_name) > MOST_NEXT:
        say(f"and for {len(by_name) - MOST_NEXT:,} more experiments, which --json lists")


def resume_command(run: ListedRun) -> tuple[str, str]:
    """(the shell's command that resumes a run, a note on it); the command is empty if it is not known.

    The recorded command is a rank's: on one machine it becomes that of `lmgym launch`, on several the launch as it was.
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
    words = shlex.split(re.sub(r" --resume[ =]never\b", "", shlex.join(words)))  # which would begin another run
    ranks, local_ranks = run.record.get("world_size", 1), run.record.get("local_world_size")
    from_scratch = "this starts it again, since it has no checkpoint"
    note = from_scratch if run.checkpoint is None else f"this resumes it from update {run.checkpoint}"
    before = ""
    if local_ranks not in (None, ranks):
        if found := _launch_on_hosts(run):
            before, words, how = found
            note += how
        else:
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
    return go + before + " ".join(map(quote, words)), f"{note}:"


def _launch_on_hosts(run: ListedRun) -> tuple[str, list[str], str] | None:
    """(what a shell does before it, the words of the launch on several machines, the end of a note on it); None where
    run.json does not say how it was launched.
    """
    launch = run.record.get("launch")
    if not isinstance(launch, dict) or not isinstance(launch.get("command"), str):
        return None
    try:
        typed = shlex.split(re.sub(r" --resume[ =]never\b", "", launch["command"][:MOST_COMMAND]))
    except ValueError:
        return None
    if typed[:2] == ["lmgym", "launch"]:
        return "", typed, ""
    job = launch.get("slurm_job")
    queue = f", or by its batch file (it was job {one_line(str(job), 20)} of Slurm)" if job else ""
    hosts = launch.get("hosts")
    if PER_HOST in typed and isinstance(hosts, dict):  # over ssh: its starter is elsewhere
        script = typed[next((i for i, word in enumerate(typed) if word.endswith(".py")), len(typed)) :]
        file = str(run.folder / "hostfile")
        lines = [f"{host} slots={slots}" for host, slots in hosts.items()]
        before = " ".join(["printf", r"'%s\n'", *map(quote, lines), ">", quote(file), "&& "])
        return before, ["lmgym", "launch", "--hostfile", file, "--submit", *script], f", on {len(hosts):,} hosts{queue}"
    return "", typed, f", on every node (a --node_rank is each node's own){queue}"


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


def _fields(run: ListedRun, runs: Sequence[ListedRun]) -> dict[str, Any]:
    """The object of --json."""
    texts = {name: run.text(name) or None for name in ("name", "started", "ended", "error")}
    cost = run.cost
    return {
        "folder": str(run.folder),
        **texts,
        "stage": stage_of(run) or None,
        "outcome": run.outcome,
        "resumed": int(cost.pop("launches")) - 1,
        "metric": run.metric and run.metric.name,
        "before": run.before,
        "after": run.after,
        "interval": run.interval,
        "update": run.measured_after,
        **cost,
        "checkpoint": run.checkpoint,
        "resume_command": (run.unfinished and resume_command(run)[0]) or None,
        "next_command": next_command(run, runs) or None,
    }
