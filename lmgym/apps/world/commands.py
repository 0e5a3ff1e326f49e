"""The commands of simulated users: `lmgym world`, world-model, world-policy, baselines, ab, deploy and demo."""

import sys

import click

from lmgym.runs.launch import launch

WORLD = click.option("--world", "folder", required=True, help="folder of a world")
MODEL_FOLDER = click.option("--output", required=True, help="folder for the model")
TABLES_FOLDER = click.option("--output", required=True, help="folder for the Parquet files")
RETENTION = click.option(
    "--retention",
    default=2.0,
    show_default=True,
    help="how long users stay: log odds of another day; 1 is shorter, 3 is longer",
)


@click.command()
@click.option("--rows", default=100_000, show_default=True, help="number of rows of the logs")
@click.option("--seed", default=0, show_default=True, help="seed of the words, the users and their behaviour")
@RETENTION
@TABLES_FOLDER
def world(rows: int, seed: int, retention: float, output: str) -> None:
    """Simulate users who chat with bots: logs, evaluation sets, and separately the hidden utility."""
    from lmgym.apps.world.making import make_world

    launch(lambda: make_world(output, rows, seed, retention))


@click.command(name="world-model")
@WORLD
@MODEL_FOLDER
@click.option("--steps", default=1400, show_default=True, help="training steps of matching replies to chats")
@click.option("--rows", default=None, type=int, help="use only the first rows of the logs")
@click.option("--seed", default=0, show_default=True, help="seed of the model and the training")
def world_model(folder: str, output: str, steps: int, rows: int | None, seed: int) -> None:
    """Pretrain a small model on the chats of a world, without labels: a start for scorers."""
    from lmgym.apps.world.making import make_world_model

    launch(lambda: make_world_model(folder, output, steps, rows, seed))


@click.command(name="world-policy")
@WORLD
@MODEL_FOLDER
@click.option("--layers", default=2, show_default=True)
@click.option("--width", default=64, show_default=True)
@click.option("--pieces", default=None, type=int, help="number of BPE tokens  [default: each word is a token]")
@click.option("--seed", default=0, show_default=True, help="seed of the weights")
def world_policy(folder: str, output: str, layers: int, width: int, pieces: int | None, seed: int) -> None:
    """Make an untrained small model with a tokenizer of a world's words: a start for `lmgym train sft chat`."""
    from lmgym.apps.world.making import make_world_policy

    launch(lambda: make_world_policy(folder, output, layers, width, pieces, seed))


@click.command()
@WORLD
@click.option("--rows", default=None, type=int, help="fit to the first rows of the logs only")
def baselines(folder: str, rows: int | None) -> None:
    """Show Spearman's correlation of length, a bag of words and an oracle with a world's hidden utility."""
    from lmgym.apps.world.making import show_baselines

    launch(lambda: show_baselines(folder, rows))


POLICY = (
    "POLICY is a model's folder or hub id, a served model (vllm:URL, vllm:FOLDER, openai:URL#MODEL, anthropic:MODEL), "
    "or `bots` (the world's own). POLICY@SCORER:N is the best of N of its replies by SCORER: a scorer's folder, `gold` "
    "(the hidden utility: the ceiling) or `random` (the floor)."
)
DAYS = click.option(
    "--days",
    default=31,
    show_default=True,
    help="days of each user from the first conversation on; 31 for retention on day 30",
)
SEED = click.option("--seed", default=0, show_default=True, help="seed of the users and of sampling")
WORLD_SEED = click.option("--world_seed", default=0, show_default=True, help="seed of the policies' world")
TEMPERATURE = click.option("--temperature", default=1.0, show_default=True, help="of sampling")
MAX_NEW_TOKENS = click.option("--max_new_tokens", default=48, show_default=True, help="of a reply")
PROCESSES = click.option(
    "--processes", default=0, show_default=True, help="0: up to one per core, for small models without a GPU"
)

CONCURRENCY = click.option(
    "--concurrency", type=click.IntRange(1), default=8, show_default=True, help="most requests to servers at a time"
)


@click.command(
    help=f"A/B test policies in an app of simulated users: the first against each of the others.\n\n{POLICY}"
)
@click.argument("policies", nargs=-1, metavar="POLICY POLICY ...")
@click.option("--users", default=1000, show_default=True, help="users in all; with --paired, users of each policy")
@DAYS
@SEED
@WORLD_SEED
@click.option("--paired", is_flag=True, help="the same users meet every policy, so that fewer users are needed")
@RETENTION
@TEMPERATURE
@MAX_NEW_TOKENS
@click.option("--logs", is_flag=True, help="also write the behaviour under policy N to OUTPUT/logs/N, as training data")
@PROCESSES
@CONCURRENCY
@click.option("--output", default="outputs/ab", show_default=True, help="folder for ab.json")
def ab(
    policies: tuple[str, ...],
    users: int,
    days: int,
    seed: int,
    world_seed: int,
    paired: bool,
    retention: float,
    temperature: float,
    max_new_tokens: int,
    logs: bool,
    processes: int,
    concurrency: int,
    output: str,
) -> None:
    from lmgym.apps.world.ab import Design, run_ab

    design = Design(users, days, seed, world_seed, paired, temperature, max_new_tokens, retention)
    launch(lambda: run_ab(policies, design, output, logs, processes, concurrency))


@click.command(help=f"Let simulated users chat with a policy, and log it as `lmgym world` does.\n\n{POLICY}")
@click.argument("policy")
@click.option("--users", default=1000, show_default=True, help="number of users")
@DAYS
@SEED
@WORLD_SEED
@RETENTION
@TEMPERATURE
@MAX_NEW_TOKENS
@PROCESSES
@CONCURRENCY
@TABLES_FOLDER
def deploy(
    policy: str,
    users: int,
    days: int,
    seed: int,
    world_seed: int,
    retention: float,
    temperature: float,
    max_new_tokens: int,
    processes: int,
    concurrency: int,
    output: str,
) -> None:
    from lmgym.apps.world.ab import Design, run_deploy

    design = Design(users, days, seed, world_seed, False, temperature, max_new_tokens, retention)
    launch(lambda: run_deploy(policy, design, output, processes, concurrency))


@click.command()
@click.option("--output", help="folder for the results  [default: outputs/demo, or outputs/demo_real]")
@click.option("--seed", default=0, show_default=True, help="seed of the world, the models, the training and the users")
@click.option("--real", is_flag=True, help="in English instead: SmolLM2-135M, a scorer trained on 215 pairs, and GRPO")
def demo(output: str | None, seed: int, real: bool) -> None:
    """Make a world, a policy and a scorer, run PPO, and A/B test the policies; needs no network, except with --real."""
    from lmgym.apps.world.demos.real import run_real_demo
    from lmgym.apps.world.demos.toy import run_demo

    begin, folder = (run_real_demo, "outputs/demo_real") if real else (run_demo, "outputs/demo")
    launch(lambda: sys.exit(begin(output or folder, seed)))
