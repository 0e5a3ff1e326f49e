"""The commands of chats: talk_to_models and convo_evolution of eval_rewards_api.py, and `lmgym chat`."""

import sys
from collections.abc import Callable
from typing import final

import click

from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

OTHER_FLAGS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
}  # load_experiment checks them
EXPERIMENT = click.option("--experiment_name", help="name of an experiment, or path/to/file.py")
CONCURRENCY = click.option(
    "--concurrency", type=click.IntRange(1), default=8, show_default=True, help="most requests to a server at a time"
)
SESSION_OPTIONS = (
    click.option("--select_model", help="scorer that selects the reply  [default: the first]"),
    click.option("--best_of", type=int, help="number of replies per turn  [default: 6, or 1 without scorers]"),
    click.option("--ranked", is_flag=True, help="show ranks instead of scores"),
    click.option("--prompt", "--persona", "prompt", help="persona of the bot, its system message"),
    click.option("--first_message", help="first message of the bot"),
    click.option("--sessions", default="outputs/sessions", show_default=True, help="folder for the session's file"),
    click.option("--json", "as_json", is_flag=True, help="print a JSON object per turn; read messages from stdin"),
)

SAMPLING_OPTIONS = (
    click.option(
        "--max_new_tokens", "--max-new-tokens", type=int, help="most tokens of a reply  [default: the model's, or 128]"
    ),
    click.option("--temperature", type=float, help="of sampling; 0 is greedy  [default: the model's, or .9]"),
    click.option("--top_p", "--top-p", type=float, help="of sampling  [default: the model's, or .95]"),
    click.option("--seed", type=int, help="of sampling  [default: 0]"),
)


@final
class ExperimentCommand(click.Command):
    """A command whose help lists the experiments and the flags that each adds."""

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes both lists."""
        from lmgym.apps.chat.loading import describe_experiments

        experiments, flags = describe_experiments()
        with formatter.section("Experiments"):
            formatter.write_dl(experiments)
        with formatter.section("The fields of an experiment's CONFIG are flags too"):
            formatter.write_dl(flags)


@click.group(cls=OneLineErrors)
def sessions() -> None:
    """Chat with models and compare reward models."""


def session_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of every session."""
    for option in reversed(SESSION_OPTIONS):
        command = option(command)
    return command


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the settings of sampling."""
    for option in reversed(SAMPLING_OPTIONS):
        command = option(command)
    return command


@sessions.command("talk_to_models", cls=ExperimentCommand, context_settings=OTHER_FLAGS)
@EXPERIMENT
@session_options
@click.pass_context
def talk_to_models(context: click.Context, as_json: bool, **options) -> None:
    """Chat with the best of N replies, with the scores of every reward model.

    A terminal asks for the persona and the first message, unless they are given.
    """

    def run() -> None:
        from lmgym.apps.chat.startup import ChatOptions, run_chat

        run_chat(ChatOptions(**options), context.args, as_json, asks=True)

    launch(run)


@sessions.command("convo_evolution", cls=ExperimentCommand, context_settings=OTHER_FLAGS)
@EXPERIMENT
@click.option("--dataset", help="conversations: a file, a folder or a hub id  [default: the experiment's own]")
@click.option("--conversations", "most", default=3, show_default=True, help="number of conversations to show")
@click.pass_context
def convo_evolution(context: click.Context, experiment_name: str | None, dataset: str | None, most: int) -> None:
    """Show how each message of the user changes every reward model's score of a conversation."""

    def run() -> None:
        from lmgym.apps.chat.evolution import show_evolution
        from lmgym.apps.chat.loading import load_experiment

        known = ("experiment_name", "dataset", "conversations")
        show_evolution(load_experiment(experiment_name, context.args, known), dataset, most, sys.stdout)

    launch(run)


@click.command()
@click.argument("model")
@click.option("--scorers", default="", metavar="[NAME=]PATH,...", help="reward models: folders or hub ids")
@sampling_options
@session_options
@CONCURRENCY
def chat(model: str, scorers: str, concurrency: int, as_json: bool, **options) -> None:
    """Talk to a model; with scorers, to the best of N replies.

    MODEL is a model's folder or hub id, or a served one: vllm:URL, vllm:FOLDER, openai:URL#MODEL, anthropic:MODEL
    (docs/engines.md). Without a terminal, each line of stdin is a message.
    """

    def run() -> None:
        from lmgym.apps.chat.startup import ChatOptions, run_chat
        from lmgym.generation.model_specs import read_model_spec
        from lmgym.scoring.named_scorers import read_names

        read_model_spec(model)  # before the scorers load
        if scorers:
            read_names(scorers)  # before the model loads
        flags = ["--model", model, "--scorers", scorers, "--concurrency", str(concurrency)]
        run_chat(ChatOptions("hh", **options), flags, as_json)

    launch(run)
