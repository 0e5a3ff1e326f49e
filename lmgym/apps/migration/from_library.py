"""`lmgym from LIBRARY FILE`: the commands here for what another library's script or config trains."""

from pathlib import Path

import click

from lmgym.apps.migration.names import KINDS, NAMES, NYU
from lmgym.console import say
from lmgym.runs.launch import launch


@click.command(name="from", context_settings={"ignore_unknown_options": True})
@click.argument("library", type=click.Choice([*NAMES, NYU]))
@click.argument("file")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
@click.option("--trainer", type=click.Choice([*KINDS.values()]), help="of a config of TRL or NYU that does not tell")
def from_library(library: str, file: str, flags: tuple[str, ...], trainer: str | None) -> None:
    """Print the command here for what another library's script or config trains, with what it leaves to you.

    FILE is a YAML or JSON config, a shell script, or a Python script or notebook; it is read, never run. Names in
    capitals are to be filled in, and each setting without an equivalent has a line. FLAGS are those that it was
    launched with; of NYU's debate project the name of the file's ENTRY goes first, without which all are listed.
    """

    def show() -> None:
        from lmgym.apps.migration.files import of_library, of_trl
        from lmgym.apps.migration.nyu import of_nyu

        if library == NYU:
            found = of_nyu(Path(file), flags, trainer)
        else:
            found = of_trl(Path(file), flags, trainer) if library == "trl" else of_library(library, Path(file), flags)
        for number, one in enumerate(found):
            if number:
                say()
            for line in str(one).splitlines():
                say(line)
            for line in one.remarks:
                say(f"# {line}")

    launch(show)
