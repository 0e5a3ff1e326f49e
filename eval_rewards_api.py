"""Talk to a model and see what every reward model thinks of its replies.

    python3 -m IPython -i -- eval_rewards_api.py talk_to_models --experiment_name NAME --select_model NAME
    python3 -m IPython -i -- eval_rewards_api.py convo_evolution --experiment_name NAME

Without IPython the same session runs in the terminal, or from a pipe. Experiments are files of
reward_models/evaluation/experiments, or yours by path; what flags they have of their own, they take here.
"""

import sys

import click

from lmgym.cli.mistakes import OneLineMistakes
from lmgym.runs.launch import launch

OTHER_FLAGS = {"ignore_unknown_options": True, "allow_extra_args": True}  # an experiment's own; a mistyped one is named


@click.group(cls=OneLineMistakes)
def main() -> None:
    """Talk to models and see what reward models think of it."""


@main.command("talk_to_models", context_settings=OTHER_FLAGS)
@click.option("--experiment_name", help="of those that there are, or path/to/file.py")
@click.option("--select_model", help="the reward model that chooses the reply")
@click.option("--best_of", default=6, show_default=True, help="replies a turn")
@click.option("--ranked", is_flag=True, help="show ranks rather than scores")
@click.option("--prompt", help="who the bot is; asked for at a terminal")
@click.option("--first_message", help="what the bot says first; asked for at a terminal")
@click.option("--sessions", default="outputs/sessions", show_default=True, help="folder of the session's file")
@click.option("--json", "as_json", is_flag=True, help="one object a line and turn; turns are lines of standard input")
@click.pass_context
def talk_to_models(context: click.Context, as_json: bool, **settings) -> None:
    """Chat with the best of N replies, by every reward model's scores."""

    def talk() -> None:
        from lmgym.chat.talking import run

        run(as_json, flags=context.args, known=[*settings, "json"], **settings)

    launch(talk)


@main.command("convo_evolution", context_settings=OTHER_FLAGS)
@click.option("--experiment_name", help="of those that there are, or path/to/file.py")
@click.option("--dataset", help="conversations: a file, a folder or a hub id; by default the experiment's own")
@click.option("--conversations", "most", default=3, show_default=True, help="how many to walk through")
@click.pass_context
def convo_evolution(context: click.Context, experiment_name: str | None, dataset: str | None, most: int) -> None:
    """Walk through conversations: each reward model's score of the next user turn, against the one without it."""

    def walk() -> None:
        from lmgym.chat.evolution import show_evolution
        from lmgym.chat.loading import load_experiment

        known = ("experiment_name", "dataset", "conversations")
        show_evolution(load_experiment(experiment_name, context.args, known), dataset, most, sys.stdout)

    launch(walk)


if __name__ == "__main__":
    main()
