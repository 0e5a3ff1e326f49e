"""TRL's own command and scripts in a shell script: `trl dpo --beta 0.1`, `python trl/scripts/dpo.py --beta 0.1`."""

import re
from pathlib import Path

from lmgym.apps.migration.launches import read_launches
from lmgym.apps.migration.names import KINDS
from lmgym.apps.migration.trl_scripts import Settings
from lmgym.errors import InputError

PROGRAMS = re.compile(
    rf"(?:\btrl |\btrl/scripts/|\btrl\.scripts\.|\bscripts/)(?P<kind>{'|'.join(KINDS.values())})(?:\.py)?(?= |$)"
)


def read_commands(path: Path, kind: str | None) -> list[Settings]:
    """The trainers that a shell script launches. Raises InputError for one with none."""
    found = []
    for one in read_launches(path, PROGRAMS, "TRL"):
        match = PROGRAMS.search(one.program)
        assert match, "it is what was searched for"
        found.append(Settings(match["kind"], one.values))
    chosen = [one for one in found if kind in (None, one.kind)]
    if not chosen:
        raise InputError(f"{path} launches no trainer of {kind}; found: {', '.join(one.kind for one in found)}")
    return chosen
