"""`lmgym lab`: how far a scorer can be optimised before what it stands for falls."""

import sys

import click

from lmgym.apps.world.commands import MAX_NEW_TOKENS, POLICY, TEMPERATURE
from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors


@click.group(cls=OneLineErrors)
def lab() -> None:
    """Optimise scorers in simulated worlds, whose hidden utility is known: how far, and who notices?"""


@lab.command(name="list")
def list_plans() -> None:
    """List the plans that come along."""
    from lmgym.apps.lab.listing import show_plans

    launch(show_plans)


@lab.command()
@click.argument("plan", metavar="PLAN")
@click.option("--output", help="the lab's folder  [default: outputs/lab/NAME]")
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(1), help="steps at a time, each on one core")
def run(plan: str, output: str | None, jobs: int) -> None:
    """Run a plan: a file, or a name of `lmgym lab list`.

    Every run is an ordinary run folder. The same command goes on after a kill; what is finished stays.
    """
    from lmgym.apps.lab.running import run_lab

    launch(lambda: sys.exit(run_lab(plan, output, jobs)))


@lab.command()
@click.argument("folder")
def report(folder: str) -> None:
    """Write the page of a lab's folder again: every curve against hidden utility and KL."""
    from lmgym.apps.lab.page import write_page

    launch(lambda: write_page(folder))


@lab.command()
@click.argument("scorer", metavar="SCORER")
@click.option("--policy", required=True, metavar="MODEL", help="whose replies are optimised: a folder or hub id")
@click.option("--prompts", default=64, show_default=True, type=click.IntRange(8), help="that neither half has")
@click.option("--replies", default=64, show_default=True, type=click.IntRange(4), help="replies to each prompt")
@MAX_NEW_TOKENS
@TEMPERATURE
@click.option("--seed", default=0, show_default=True, help="seed of sampling")
@click.option("--output", default="outputs/budget", show_default=True, help="folder for what is made")
def budget(
    scorer: str,
    policy: str,
    prompts: int,
    replies: int,
    max_new_tokens: int,
    temperature: float,
    seed: int,
    output: str,
) -> None:
    """Say at which KL to stop optimising a scorer, without gold.

    SCORER is the folder of a run of `lmgym train reward` on pairs. Two scorers are trained on disjoint halves of its
    pairs, by prompt; the best of N of the policy's replies by either is scored by the other.
    """
    from lmgym.apps.lab.budget_command import run_budget
    from lmgym.generation.protocol import Sampling

    launch(
        lambda: run_budget(scorer, policy, prompts, replies, Sampling(max_new_tokens, temperature, seed=seed), output)
    )


@lab.command(
    help="Score policies by the hidden utility of a reply in a simulated world, on prompts fixed for the version.\n\n"
    f"{POLICY}\n\nA run's folder stands for its model. Several policies are compared with the first."
)
@click.argument("policies", nargs=-1, required=True, metavar="POLICY [POLICY ...]")
@click.option("--world", required=True, metavar="SEED", help="seed of the world, as of `lmgym world`")
@click.option("--seed", default=0, show_default=True, help="seed of sampling; the prompts are always the same")
@TEMPERATURE
@MAX_NEW_TOKENS
@click.option("--output", help="JSON file for the record  [default: none is written]")
def score(
    policies: tuple[str, ...], world: str, seed: int, temperature: float, max_new_tokens: int, output: str | None
) -> None:
    from lmgym.apps.lab.score import Scoring, run_score

    launch(lambda: run_score(policies, world, Scoring(seed, temperature, max_new_tokens), output))
