"""`lmgym runs`: the runs under a folder as a table, and for each the command to type next."""

import click

from lmgym.runs.launch import launch


@click.command()
@click.argument("folder", default="outputs", metavar="[FOLDER]")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object per run")
def runs(folder: str, as_json: bool) -> None:
    """List the runs in a folder, the newest first: outcome, result, cost, and the command to type next for each.

    The result is the main metric on held-out rows before and after training, with its 95% interval where there is one
    and the update after which it was measured; `none yet` for a run that has no evaluation of its trained model.
    FOLDER is `outputs` unless it is named; runs are found up to four folders below it.
    """
    from lmgym.cli.runs_table import show_runs

    launch(lambda: show_runs(folder, as_json))
