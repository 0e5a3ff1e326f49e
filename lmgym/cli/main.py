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
    from lmgym.environments.tables import write_world
    from lmgym.errors import InputError

    try:
        sizes = write_world(output, rows, seed)
    except InputError as error:
        raise click.UsageError(str(error)) from error
    print(f"{output}: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()))


if __name__ == "__main__":
    main()
