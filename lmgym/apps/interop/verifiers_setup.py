"""`lmgym env setup verifiers PACKAGE ...`: the environment of verifiers, and packages in it."""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from lmgym.apps.interop.from_verifiers import TESTED, VARIABLE, environment_folder, names
from lmgym.console import say
from lmgym.errors import InputError, listed, one_line, shown_path

MEGABYTES, MINUTES = 570, 1
"""of verifiers 0.4.0, as measured"""


def set_up(packages: Sequence[str]) -> None:
    """Makes the environment unless it is there, and installs the packages: names, folders, wheels, as for pip.

    Raises InputError for a folder of something else, and if a step fails.
    """
    folder = environment_folder()
    python = folder / "bin/python"
    if not python.is_file():
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{shown_path(folder)} is no environment of Python; needed: another folder in {VARIABLE}")
        say(f"verifiers {TESTED} goes into {folder}: about {MEGABYTES} MB and {MINUTES} minute")
        _run([sys.executable, "-I", "-m", "venv", str(folder)])
    wanted = [os.path.abspath(one) if os.path.exists(one) else one for one in packages]
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        pip = [str(python), "-I", "-m", "pip", "install", "--quiet", "--report", report.name]
        _run([*pip, f"verifiers=={TESTED}.*", *wanted])
        installed = json.load(report)["install"]
    new = [one["metadata"]["name"].replace("-", "_") for one in installed if one["requested"]]
    found = [name for name in new if name != "verifiers"] or names()
    say(f"in {folder}: {listed(found) if found else 'verifiers, and no package of environments yet'}")
    if found:
        say(f"next: lmgym train grpo verifiers:{found[0]} --model MODEL")


def _run(words: list[str]) -> None:
    """Raises InputError if a step fails, with the last line that it printed."""
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"})
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.strip().splitlines()
        raise InputError(f"{one_line(shlex.join(words))} failed: {one_line(said[0] if said else 'no message', 300)}")
