"""`lmgym lab`: how far a scorer can be optimised before what it stands for falls."""

import sys

import click

from lmgym.runs.launch import launch


@click.group()
def lab() -> None:
    """Optimise scorers in simulated worlds, whose hidden utility is known: how far, and who notices?"""


@lab.command(name="list")
def list_plans() -> None:
    """List the plans that come along."""
    from lmgym.apps.lab.listing import show_plans

    launch(show_plans)


@lab.command()
@click.argument("plan", metavar="PLAN")
@click.option("--output", help="the lab's folder  [default: outputs/lab/NAME]")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="steps at a time, each on one core")
def run(plan: str, output: str | None, jobs: int) -> None:
    """Run a plan: a file, or a name of `lmgym lab list`.

    Every run is an ordinary run folder. The same command goes on after a kill; what is finished stays.
    """
    from lmgym.apps.lab.running import run_lab

    launch(lambda: sys.exit(run_lab(plan, output, jobs)))


@lab.command()
@click.argument("folder")
def report(folder: str) -> None:
    """Write the page of a lab's folder again: every curve against hidden utility and KL."""
    from lmgym.apps.lab.page import write_page

    launch(lambda: write_page(folder))
