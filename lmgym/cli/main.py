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


if __name__ == "__main__":
    main()
