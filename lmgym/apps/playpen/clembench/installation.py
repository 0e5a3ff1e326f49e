"""`lmgym playpen setup`: an environment of its own for clemcore, made with uv, or with venv and pip.

It says first what it needs and whether that is there, and changes nothing if something is missing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from lmgym.apps.playpen.clembench.bridge import FOLDER, VARIABLE
from lmgym.console import say
from lmgym.errors import InputError, one_line, shown, shown_path

VERSION = "2.5.2"
NEWEST_PYTHON = (3, 13)  # clemcore needs one below it
MEGABYTES = 900
EXTRAS = ("scikit-learn", "networkx")  # privateshared, textmapworld
# clembench's taboo asks nltk for English stop words; nltk's own list is a download from elsewhere
STOP_WORDS = (
    "a about after all also an and any are as at be been before but by can could did do does down each few for from "
    "had has have he her here him his how i if in into is it its just me more most my no nor not now of off on once "
    "only or other our out over own same she should so some such than that the their them then there these they this "
    "those to too under until up very was we were what when where which while who whom why will with would you your"
)
MOST_SECONDS = 1800


def set_up(folder: str | None, version: str, check_only: bool) -> None:
    """Makes the environment, or says what it would need. Raises InputError for what is missing or fails."""
    target = Path(folder or os.environ.get(VARIABLE) or FOLDER).expanduser()
    if not version.replace(".", "").isalnum():
        raise InputError(f"version {shown(version)}; needed: such as {VERSION}")
    python, uv = find_old_python(), shutil.which("uv")
    parent = next(p for p in (target.absolute(), *target.absolute().parents) if p.exists())
    free = shutil.disk_usage(parent).free / 1e6
    installer = "uv" if uv else "pip, which may take minutes; uv is faster"
    needs = {
        f"Python 3.10 to 3.12: {python or 'not found'}": bool(python),
        f"{MEGABYTES} MB in {target}: {free:,.0f} MB free": free > MEGABYTES,
        f"a package index with clemcore {version}, by {installer}": True,
    }
    say(f"clemcore {version} gets an environment of its own in {target}. It needs:")
    for need, there in needs.items():
        say(f"  {'ok     ' if there else 'missing'} {need}")
    if missing := [need for need, there in needs.items() if not there]:
        raise InputError(f"found no {missing[0]}; needed: all of the above")
    if (target / "bin" / "python").exists():
        if not any(target.glob("lib/*/site-packages/clemcore")):
            raise InputError(f"{shown_path(target)} is an environment without clemcore; needed: remove it, and repeat")
        say(f"{target} exists already; remove it to make it anew")
        return
    if check_only:
        return
    for command in commands(target, version, str(python), uv):
        _run(command, target)
    words = target / "nltk_data" / "corpora" / "stopwords" / "english"  # where nltk looks below sys.prefix
    words.parent.mkdir(parents=True, exist_ok=True)
    words.write_text("\n".join(STOP_WORDS.split()) + "\n", encoding="utf-8")
    say(f"clemcore {version} is in {target}; name a checkout of clembench in game_registry.json, or with --games")


def find_old_python() -> str | None:
    """A Python that clemcore supports: this one if it is, else one on PATH."""
    if sys.version_info < NEWEST_PYTHON:
        return sys.executable
    return next((found for minor in (12, 11, 10) if (found := shutil.which(f"python3.{minor}"))), None)


def commands(target: Path, version: str, python: str, uv: str | None) -> list[list[str]]:
    """The commands that make the environment."""
    packages = [f"clemcore=={version}", *EXTRAS]
    own = str(target / "bin" / "python")
    if uv:
        return [[uv, "venv", "--python", python, str(target)], [uv, "pip", "install", "--python", own, *packages]]
    return [[python, "-m", "venv", str(target)], [own, "-m", "pip", "install", "--quiet", *packages]]


def _run(command: list[str], target: Path) -> None:
    say(f"$ {' '.join(command)}")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{command[0]} failed: {one_line(str(error))}; needed: a working one") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(
            f"{shown_path(command[0])} ended with exit code {done.returncode}: {one_line(last, 300)}; needed: an index "
            f"that has these packages, and {shown_path(target)} removed before the next try"
        )
