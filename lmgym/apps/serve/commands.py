"""`lmgym serve`: what was trained, over HTTP."""

from importlib.util import find_spec

import click

from lmgym.config import Range
from lmgym.errors import MOST_SECONDS, MOST_STEPS, InputError
from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors
from lmgym.scoring.named_scorers import read_names


@click.group(cls=OneLineErrors)
def serve() -> None:
    """Serve what was trained over HTTP."""


@serve.command()
@click.argument("scorers", nargs=-1, required=True, metavar="[NAME=]PATH...")
@click.option("--host", default="127.0.0.1", show_default=True, help="address; another than this machine needs a token")
@click.option("--port", default=8900, show_default=True, help="0: any that is free")
@click.option(
    "--token",
    envvar="LMGYM_TOKEN",
    default="",
    help="that clients must send; better in the environment variable LMGYM_TOKEN, which other users do not see",
)
@click.option(
    "--template",
    type=click.Choice(["reparse", "raw"]),
    default="reparse",
    show_default=True,
    help="rendered texts: read back into messages for the scorer's own template, or read as they are",
)
@click.option("--timeout", default=60.0, show_default=True, help="seconds until a request is refused")
@click.option("--queue", default=4096, show_default=True, help="replies that may wait to be scored")
@click.option("--max_body_mb", default=16.0, show_default=True, help="size of a request")
@click.option("--precision", type=click.Choice(["auto", "bf16", "fp32"]), default="auto", show_default=True)
def rewards(scorers: tuple[str, ...], host: str, port: int, token: str, precision, **limits) -> None:
    """Serve scorers as rewards to any trainer: TRL, OpenRLHF, verl, verifiers.

    A PATH is a folder or hub id; PATH+PATH is an ensemble, whose answers have a spread. The first scorer answers
    requests that name none. kill -HUP loads all again.
    """

    def run() -> None:
        Range(0, 65_535, hint="0: any that is free").check("port", port)
        Range(0, MOST_SECONDS, above=True, hint="seconds").check("timeout", limits["timeout"])
        Range(1, MOST_STEPS).check("queue", limits["queue"])
        Range(0, 1024, above=True, hint="megabytes").check("max_body_mb", limits["max_body_mb"])
        paths = read_names(",".join(scorers), "lmgym serve rewards")
        if missing := [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]:
            raise InputError(f"{' and '.join(missing)} not installed, for serving; needed: pip install 'lmgym[serve]'")
        from lmgym.apps.serve.address import bind  # imports numpy

        with bind(host, port, token.strip()) as listener:
            from lmgym.apps.serve.running import serve_rewards  # imports torch
            from lmgym.apps.serve.service import Limits

            serve_rewards(listener, paths, token.strip(), Limits(**limits), precision)

    launch(run)
