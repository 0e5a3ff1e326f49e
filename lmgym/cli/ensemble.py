"""`lmgym ensemble`: several scorers as one, in a folder that every scorer's PATH may name."""

import click

from lmgym.console import say
from lmgym.errors import shown_path
from lmgym.runs.launch import launch


@click.command()
@click.argument("scorers", nargs=-1, required=True, metavar="SCORER...")
@click.option("--output", required=True, help="folder of the ensemble")
@click.option("--combine", default="mean", show_default=True, help="mean, min, mean-std or mean-2std")
def ensemble(scorers: tuple[str, ...], output: str, combine: str) -> None:
    """Make one scorer of several that were trained with one loss: runs, folders or hub ids.

    The folder names its members by paths relative to it. Where all are adapters of one base, that is loaded once.
    'PATH#min' or 'PATH#mean-2std' combines them otherwise.
    """

    def write() -> None:
        from lmgym.scoring.ensembles import write_ensemble  # torch

        folder = write_ensemble(scorers, output, combine)
        say(f"{shown_path(folder)}: the {combine} of {len(scorers)} scorers")

    launch(write)
