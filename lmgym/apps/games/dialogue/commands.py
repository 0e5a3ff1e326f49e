"""`lmgym dialogue`: dialogue games by scripted players, and rows to learn from out of records."""

from typing import Any

import click

from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

KEEP: dict[str, Any] = {
    "multiple": True,
    "metavar": "NAME",
    "help": "keep only rows of this one; may be given several times",
}


@click.group(cls=OneLineErrors)
def dialogue() -> None:
    """Dialogue games: records of scripted players, and records as rows to learn from."""


@dialogue.command(name="list")
def list_dialogue_games() -> None:
    """Show the games with their roles and experiments."""
    from lmgym.apps.games.dialogue.playing import show_games

    launch(show_games)


@dialogue.command()
@click.argument("game")
@click.option("--player", default="winner", show_default=True, help="winner, loser or rule_breaker, in every role")
@click.option("--number", default=10, show_default=True, help="of instances of each experiment")
@click.option("--seed", default=0, show_default=True, help="of the instances")
@click.option("--split", default="train", show_default=True, help="of instances: train or validation")
@click.option("--output", required=True, help="folder for the records")
def play(game: str, player: str, number: int, seed: int, split: str, output: str) -> None:
    """Play GAME by scripts, and write clembench's records. GAME is a name, or all."""
    from lmgym.apps.games.dialogue.playing import play_games

    launch(lambda: play_games(game, player, number, seed, split, output))


@dialogue.command()
@click.argument("source")
@click.option("--output", required=True, help="JSONL file for the rows")
@click.option("--outcome", **KEEP)
@click.option("--game", **KEEP)
@click.option("--experiment", **KEEP)
@click.option("--role", **KEEP)
@click.option("--model", **KEEP)
@click.option("--loss", default="all", show_default=True, help="SFT learns all of a player's replies, or the last")
@click.option("--split", default="train", show_default=True, help="of a data set of the hub")
def rows(source: str, output: str, loss: str, split: str, **keep: tuple[str, ...]) -> None:
    """Write one row for each player's view in SOURCE: messages, and meta with the outcome.

    SOURCE is a folder of clembench's records, a file of such rows or a data set of the hub, such as playpen-data.
    """
    from lmgym.apps.games.dialogue.playing import write_rows

    launch(lambda: write_rows(source, output, loss, split, keep))
