"""The commands of chats: talk_to_models and convo_evolution of eval_rewards_api.py, and `lmgym chat`."""

import sys
from typing import final

import click

from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

OTHER_FLAGS = {
    "ignore_unknown_options": True,
    "allow_extra_args": True,
}  # load_experiment checks them
EXPERIMENT = click.option("--experiment_name", help="name of an experiment, or path/to/file.py")


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


@sessions.command("talk_to_models", cls=ExperimentCommand, context_settings=OTHER_FLAGS)
@EXPERIMENT
@click.option("--select_model", help="scorer that selects the reply  [default: the only one]")
@click.option("--best_of", default=6, show_default=True, help="number of replies per turn")
@click.option("--ranked", is_flag=True, help="show ranks instead of scores")
@click.option("--prompt", help="persona of the bot; a terminal asks for it")
@click.option("--first_message", help="first message of the bot; a terminal asks for it")
@click.option("--sessions", default="outputs/sessions", show_default=True, help="folder for the session's file")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object per turn; read messages from stdin")
@click.pass_context
def talk_to_models(context: click.Context, as_json: bool, **options) -> None:
    """Chat with the best of N replies, with the scores of every reward model."""

    def run() -> None:
        from lmgym.apps.chat.startup import ChatOptions, run_chat

        run_chat(ChatOptions(**options), context.args, as_json)

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


@click.command(context_settings={"ignore_unknown_options": True})  # talk_to_models checks them
@click.argument("policy")
@click.option("--scorers", required=True, metavar="NAME=PATH,...", help="reward models: folders or hub ids")
@click.option("--best_of", default=6, show_default=True, help="number of replies per turn")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
def chat(policy: str, scorers: str, best_of: int, flags: tuple[str, ...]) -> None:
    """Talk to a policy: the best of N replies, with the opinion of every scorer.

    POLICY is a model's folder or hub id.

    \b
    FLAGS:
      --select_model NAME   scorer that selects the reply  [default: the first]
      --ranked              show ranks instead of scores
      --prompt TEXT         persona of the bot; a terminal asks for it
      --first_message TEXT  first message of the bot; a terminal asks for it
      --sessions FOLDER     folder for the session's file
      --json                print a JSON object per turn; read messages from stdin
    """
    from lmgym.scoring.named_scorers import read_names

    words = ["--experiment_name", "hh", "--model", policy, "--scorers", scorers, "--best_of", str(best_of), *flags]

    def run() -> None:
        first = next(iter(read_names(scorers)))
        talk_to_models.main(["--select_model", first, *words], standalone_mode=False)

    launch(run)
