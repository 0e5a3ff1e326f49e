"""`lmgym serve`: what was trained, over HTTP."""

from collections.abc import Callable
from importlib.util import find_spec

import click

from lmgym.config import Range
from lmgym.errors import MOST_SECONDS, MOST_STEPS, MOST_TOGETHER, InputError
from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

CLOSING_SECONDS = 5.0
"""that sessions of environments may go on once the server is stopped"""
SERVER_OPTIONS = (
    click.option("--host", default="127.0.0.1", show_default=True, help="another than this machine's needs a token"),
    click.option("--port", default=8900, show_default=True, help="0: any that is free"),
    click.option(
        "--token",
        envvar="LMGYM_TOKEN",
        default="",
        help="that clients must send; better in the environment variable LMGYM_TOKEN, which other users do not see",
    ),
    click.option("--max_body_mb", default=16.0, show_default=True, help="size of a request"),
)


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of every server."""
    for option in reversed(SERVER_OPTIONS):
        command = option(command)
    return command


@click.group(cls=OneLineErrors)
def serve() -> None:
    """Serve what was trained over HTTP."""


@serve.command()
@click.argument("scorers", nargs=-1, required=True, metavar="[NAME=]PATH...")
@server_options
@click.option(
    "--template",
    type=click.Choice(["reparse", "raw"]),
    default="reparse",
    show_default=True,
    help="rendered texts: read back into messages for the scorer's own template, or read as they are",
)
@click.option("--timeout", default=60.0, show_default=True, help="seconds until a request is refused")
@click.option("--queue", default=4096, show_default=True, help="replies that may wait to be scored")
@click.option("--precision", type=click.Choice(["auto", "bf16", "fp32"]), default="auto", show_default=True)
@click.option("--stop_on_alarm", is_flag=True, help="refuse rewards to a run that exploits its reward")
def rewards(scorers: tuple[str, ...], host: str, port: int, token: str, precision, **limits) -> None:
    """Serve scorers as rewards to any trainer: TRL, OpenRLHF, verl, verifiers.

    A PATH is a folder or hub id; PATH+PATH is an ensemble, whose answers have a spread. The first scorer answers
    requests that name none. kill -HUP loads all again.
    """

    def run() -> None:
        from lmgym.scoring.named_scorers import read_names

        _check(port, limits["timeout"], limits["queue"], limits["max_body_mb"])
        paths = read_names(",".join(scorers), "lmgym serve rewards")
        _require_extra()
        from lmgym.apps.serve.http_server import bind  # imports fastapi

        with bind(host, port, token.strip()) as listener:
            from lmgym.apps.serve.app import serve_rewards  # imports torch
            from lmgym.apps.serve.service import Limits

            serve_rewards(listener, paths, token.strip(), Limits(**limits), precision)

    launch(run)


@serve.command()
@click.argument("policies", nargs=-1, required=True, metavar="[NAME=]PATH...")
@click.option("--scorers", default="", metavar="[NAME=]PATH,...", help="reward models: folders or hub ids")
@click.option("--best_of", type=int, help="replies to generate, of which the best is sent  [default: 6, or 1]")
@click.option("--max_best_of", default=64, show_default=True, help="most that a request may have generated")
@click.option("--select_model", help="scorer that selects the reply  [default: the first]")
@click.option("--max_tokens", type=int, help="of replies to requests that set none  [default: 128]")
@click.option("--prompt", "--persona", "prompt", default="", help="system message of requests that have none")
@click.option("--first_message", default="", help="first message of the bot on the page")
@click.option("--sessions", default="outputs/sessions", show_default=True, help="folder for the page's sessions")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="most requests to a served policy at a time",
)
@server_options
@click.option("--timeout", default=300.0, show_default=True, help="seconds until a request is refused")
@click.option("--queue", default=64, show_default=True, help="requests that may wait")
def chat(
    policies: tuple[str, ...], host: str, port: int, token: str, max_body_mb: float, sessions: str, **options
) -> None:
    """Serve policies as an OpenAI server, best of N replies by scorers, and a page to talk with them.

    A PATH is a folder or hub id, or a served model: vllm:URL, vllm:FOLDER, openai:URL#MODEL, anthropic:MODEL
    (docs/engines.md). The first policy answers requests that name none.
    """

    def run() -> None:
        from lmgym.scoring.named_scorers import read_names

        _check(port, options["timeout"], options["queue"], max_body_mb)
        paths = read_names(",".join(policies), "lmgym serve chat")
        from lmgym.generation.model_specs import read_model_spec

        for path in paths.values():
            read_model_spec(path)
        if options["scorers"]:
            read_names(options["scorers"])  # before the models load
        if options["max_tokens"] is not None:
            Range(1, MOST_TOGETHER).check("max_tokens", options["max_tokens"])
        _require_extra()
        from lmgym.apps.serve.http_server import bind  # imports fastapi

        with bind(host, port, token.strip()) as listener:
            from lmgym.apps.serve.chat_app import serve_chat  # imports torch
            from lmgym.apps.serve.chat_models import ChatOptions

            serve_chat(listener, paths, token.strip(), ChatOptions(**options), sessions, max_body_mb)

    launch(run)


@serve.command(context_settings={"ignore_unknown_options": True})
@click.argument("rows", metavar="ROWS")
@click.option("--output", help="folder for the labels, with which a server goes on  [default: outputs/labels/ROWS]")
@click.option("--question", default="Which reply is better?", show_default=True, help="that raters are asked")
@click.option(
    "--pairs_per_prompt",
    type=click.IntRange(1),
    help="of prompts with several replies: the most pairs  [default: one fewer than replies, which connect all]",
)
@server_options
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
def label(
    rows: str, output: str | None, question: str, host: str, port: int, token: str, flags: tuple[str, ...], **options
) -> None:
    """Serve a page on which people say which of two replies is better; their votes are rows for training.

    ROWS is a file, a folder or a hub id, or several separated by commas: pairs (chosen and rejected, response_a and
    response_b), lists of replies, or single replies to the same prompt, as the files of a run's samples/ have them.
    Columns are named by --prompt_column, --chosen_column and the like (docs/data_formats.md).

    Each verdict is written to the folder at once, and labels.jsonl there has all of them (docs/judges.md).
    """
    from lmgym.config import ColumnConfig
    from lmgym.runs.flags import override

    columns = override(ColumnConfig(), flags)

    def run() -> None:
        _check_address(port, options["max_body_mb"])
        _require_extra()
        from lmgym.apps.serve.http_server import bind

        with bind(host, port, token.strip()) as listener:
            from lmgym.apps.serve.label_app import Labelling, serve_labels  # imports fastapi

            labelling = Labelling(rows, output, columns, options["pairs_per_prompt"], question)
            serve_labels(listener, labelling, token.strip(), options["max_body_mb"])

    launch(run)


@serve.command(name="env")
@click.argument("environment")
@click.option(
    "--split",
    type=click.Choice(["train", "validation"]),
    default="train",
    show_default=True,
    help="of episodes whose reset names none",
)
@click.option("--max_sessions", type=click.IntRange(1), default=64, show_default=True, help="most episodes at a time")
@server_options
def serve_environment(
    environment: str, split, max_sessions: int, host: str, port: int, token: str, max_body_mb: float
) -> None:
    """Serve an environment to other trainers, as an OpenEnv server.

    ENVIRONMENT is SCHEME:NAME, as `lmgym env list` shows, or FILE.py:CLASS. Actions are {"text": ...}; the splits train
    and validation have no task in common (docs/environments.md).
    """

    def run() -> None:
        _check_address(port, max_body_mb)
        _require_extra()
        if find_spec("openenv") is None:
            raise InputError("openenv is not installed, for OpenEnv servers; needed: pip install 'lmgym[openenv]'")
        from lmgym.apps.serve.http_server import bind, serve_until_stopped
        from lmgym.environments.named import load_environment

        with bind(host, port, token.strip()) as listener:
            from lmgym.apps.interop.to_openenv import make_app  # imports openenv
            from lmgym.apps.serve.metrics import Metrics

            app = make_app(load_environment(environment), split, max_sessions)
            answers = f"answers OpenEnv's clients: {environment}, split {split}, up to {max_sessions} sessions"
            serve_until_stopped(listener, app, Metrics(), answers, token.strip(), max_body_mb, CLOSING_SECONDS)

    launch(run)


def _check(port: int, timeout: float, queue: int, max_body_mb: float) -> None:
    _check_address(port, max_body_mb)
    Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", timeout)
    Range(1, MOST_STEPS).check("queue", queue)


def _check_address(port: int, max_body_mb: float) -> None:
    Range(0, 65_535, hint="0: any that is free").check("port", port)
    Range(0, 1024, above=True, hint="megabytes").check("max_body_mb", max_body_mb)


def _require_extra() -> None:
    if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
        raise InputError(f"{' and '.join(missing)} not installed, for serving; needed: pip install 'lmgym[serve]'")
