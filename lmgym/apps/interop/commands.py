"""`lmgym env`: environments by name, theirs and ours."""

import click

from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors


@click.group(cls=OneLineErrors)
def env() -> None:
    """Environments for `lmgym train ppo|grpo ENVIRONMENT`, and ours as packages for other trainers."""


@env.command(name="list")
@click.argument("scheme", required=False)
def list_environments(scheme: str | None) -> None:
    """Show what there is and what it needs, or all names of SCHEME."""
    from lmgym.apps.interop.listing import show_environments, show_names

    launch(lambda: show_names(scheme) if scheme else show_environments())


@env.command()
@click.argument("library", type=click.Choice(["verifiers"]))
@click.argument("packages", nargs=-1, metavar="[PACKAGES]...")
def setup(library: str, packages: tuple[str, ...]) -> None:
    """Make the environment of LIBRARY, which needs other versions than lmgym, and install PACKAGES in it."""
    from lmgym.apps.interop.verifiers_setup import set_up

    launch(lambda: set_up(packages))


@env.command()
@click.argument("environment")
@click.option("--output", help="folder of the package  [default: outputs/environments/NAME]")
def export(environment: str, output: str | None) -> None:
    """Write ENVIRONMENT as an installable package for TRL's GRPOTrainer and for verifiers."""
    from lmgym.apps.interop.export import export

    launch(lambda: export(environment, output))
