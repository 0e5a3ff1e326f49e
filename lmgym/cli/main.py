"""The `lmgym` command. Stages are imported inside its commands only."""

import click


@click.group()
def main() -> None:
    """lmgym: what belongs to no single stage. Experiments are files: deepspeed path/to/experiment.py --help"""


@main.command()
@click.option("--output", default="outputs/demo", show_default=True, help="folder of the demo's data and results")
@click.option("--seed", default=0, show_default=True, help="of the pairs, the model and the training")
def demo(output: str, seed: int) -> None:
    """Train and judge a small scorer on two ranks under ZeRO 2; needs no network."""
    from lmgym.cli.demo import run_demo

    raise SystemExit(run_demo(output, seed))


@main.command()
@click.option("--rows", default=100_000, show_default=True, help="of the logs")
@click.option("--seed", default=0, show_default=True, help="of the words, the users and what they do")
@click.option("--output", required=True, help="folder of the Parquet files")
def world(rows: int, seed: int, output: str) -> None:
    """Simulate users who chat with bots: logs, evaluation sets, and apart the hidden utility."""
    from lmgym.cli.worlds import make_world
    from lmgym.launch import launch

    launch(lambda: make_world(output, rows, seed))


@main.command(name="world-model")
@click.option("--world", "folder", required=True, help="folder of a world")
@click.option("--output", required=True, help="folder of the model")
@click.option("--steps", default=1400, show_default=True, help="of telling a chat's own reply from another's")
@click.option("--rows", default=None, type=int, help="use only the first rows of the logs")
@click.option("--seed", default=0, show_default=True, help="of the model and the steps")
def world_model(folder: str, output: str, steps: int, rows: int | None, seed: int) -> None:
    """Make a small model that knows the words of a world, from its chats without labels: a start for scorers."""
    from lmgym.cli.worlds import make_world_model
    from lmgym.launch import launch

    launch(lambda: make_world_model(folder, output, steps, rows, seed))


@main.command(name="world-policy")
@click.option("--world", "folder", required=True, help="folder of a world")
@click.option("--output", required=True, help="folder of the model")
@click.option("--layers", default=2, show_default=True)
@click.option("--width", default=64, show_default=True)
@click.option("--pieces", default=None, type=int, help="cut words into so many pieces; else each word is a token")
@click.option("--seed", default=0, show_default=True, help="of the weights")
def world_policy(folder: str, output: str, layers: int, width: int, pieces: int | None, seed: int) -> None:
    """Make an untrained small model with a tokenizer of a world's words: a start for sft/experiments/chat.py."""
    from lmgym.cli.worlds import make_world_policy
    from lmgym.launch import launch

    launch(lambda: make_world_policy(folder, output, layers, width, pieces, seed))


@main.command()
@click.option("--world", "folder", required=True, help="folder of a world")
@click.option("--rows", default=None, type=int, help="fit to the first rows of the logs only")
def baselines(folder: str, rows: int | None) -> None:
    """Show how far length, a bag of words and an oracle come on a world: Spearman with the hidden utility."""
    from lmgym.cli.worlds import show_baselines
    from lmgym.launch import launch

    launch(lambda: show_baselines(folder, rows))


if __name__ == "__main__":
    main()
