"""`lmgym debate`: a tournament by the name or path of its file, or the audit of a judge."""

import os
import shlex
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from lmgym.apps.debate.tournament.running import refuse_old_flags
from lmgym.console import say
from lmgym.errors import InputError, shown, shown_path
from lmgym.runs.launching import files_importing, summary


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
    if name.endswith(".py") or "/" in name:
        if not path.is_file():
            raise InputError(f"there is no file {shown_path(name)}; available: {', '.join(known)}, or a path")
        return path
    near = get_close_matches(name[:80], known, n=1, cutoff=0.5)
    suggestion = f"did you mean {near[0]}? " if near else ""
    raise InputError(
        f"there is no debate {shown(name)}; {suggestion}available: {', '.join(known)}, or a path/to/file.py"
    )


def run_debate(name: str | None, flags: Sequence[str]) -> None:
    """Becomes the process of the experiment, or lists all of them without a name; `audit` audits a judge."""
    if name == "audit":
        from lmgym.apps.debate.audit.command import run_audit

        run_audit(flags)
        return
    refuse_old_flags([name or "", *flags])
    if name is None:
        list_tournaments()
        return
    command = [sys.executable, str(find_tournament(name)), *flags]
    if not {"-h", "--help"} & set(flags):
        say(f"$ {shlex.join(command)}")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(command[0], command)
