"""`lmgym merge`: an adapter and its base as one model."""

import click

from lmgym.console import say
from lmgym.errors import shown_path
from lmgym.runs.launch import launch


@click.command()
@click.argument("adapter", metavar="ADAPTER")
@click.option("--output", help="folder of the model  [default: merged, beside a run's adapter; else ADAPTER-merged]")
@click.option("--base", help="folder or hub id of the base, if it is not where the adapter says")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="of the saved weights  [default: the base's]")
def merge(adapter: str, output: str | None, base: str | None, precision: str | None) -> None:
    """Merge a LoRA adapter into its base, and save the model.

    ADAPTER is an adapter's folder, or that of a run that has one. The result is an ordinary Hugging Face folder, which
    every server and `lmgym serve`, `chat`, `eval` and `push` read.
    """

    def save() -> None:
        from lmgym.models.forward.merging import merge_adapter  # torch

        folder = merge_adapter(adapter, output, base, precision)
        say(f"{shown_path(folder)}: the base with {shown_path(adapter)} merged in")

    launch(save)
