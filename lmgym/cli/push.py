"""`lmgym push`: what a run has trained, to the Hugging Face hub."""

from dataclasses import dataclass
from pathlib import Path

import click

from lmgym.console import say
from lmgym.runs.launch import launch


@dataclass(frozen=True)
class Options:
    """The settings of a push."""

    private: bool = False
    revision: str | None = None
    base: str | None = None


@click.command("push")
@click.argument("run", metavar="RUN")
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="create the repository as a private one")
@click.option("--revision", help="branch, which is created if it is not there  [default: main, and last for last/]")
@click.option("--base", metavar="OWNER/NAME", help="of an adapter: the hub id of the model that it was trained on")
def push(run: str, repository: str, private: bool, revision: str | None, base: str | None) -> None:
    """Push what a run has trained to the Hugging Face hub, with its card and without paths of this machine.

    RUN is a run's folder: its model, or its adapter, goes to main, and last/, where the best model was kept, to the
    branch last; or the folder of a model or adapter. What is there already is not sent again: after a failure, the
    same command goes on. The token is that of HF_TOKEN, or of `hf auth login`.
    """
    launch(lambda: push_run(run, repository, Options(private, revision, base)))


def push_run(run: str, repository: str, options: Options) -> None:
    """Pushes a run's folder or a model's. Raises InputError for what cannot be pushed, or if the hub refuses it."""
    from lmgym.errors import InputError
    from lmgym.runs import publishing
    from lmgym.runs.hub import check_access, check_name, open_hub

    folder = Path(run).expanduser().absolute()
    check_name(repository)
    if options.base:
        check_name(options.base, "--base")
    found = publishing.sources(folder)
    if options.revision:
        found = [(found[0][0], options.revision)]
    paths = publishing.private_paths(publishing.record_of(folder))
    read = [(one, publishing.read_files(one, repository, options.base, paths), branch) for one, branch in found]
    hub = open_hub(repository)
    try:
        check_access(hub, repository)
        for one, files, branch in read:
            pushed = publishing.push(hub, one, files, repository, branch, options.private)
            publishing.record_push(folder, pushed)
            say(pushed)
    except InputError:
        raise
    except Exception as error:  # of the hub, the network, or the disk
        why = publishing.reason(error)
        raise InputError(f"{repository}: {why}; what was sent is kept: the same command goes on from there") from error
