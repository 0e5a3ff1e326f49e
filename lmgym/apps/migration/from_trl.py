"""`lmgym from-trl FILE`: the commands here for what a script or config of TRL trains."""

from pathlib import Path

import click

from lmgym.apps.migration.translation import translate
from lmgym.apps.migration.trl_scripts import KINDS, fill_in, read_file, read_flags
from lmgym.console import say
from lmgym.runs.launch import launch


@click.command(name="from-trl", context_settings={"ignore_unknown_options": True})
@click.argument("file")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
@click.option("--trainer", type=click.Choice([*KINDS.values()]), help="of a YAML config that does not tell")
def from_trl(file: str, flags: tuple[str, ...], trainer: str | None) -> None:
    """Print the command here for a script, notebook or YAML config of TRL, with what it leaves to you.

    FILE is read, never run. Names in capitals are to be filled in, and each setting without an equivalent has a line.
    FLAGS are those that a script was launched with. TRL's trainers: Reward, SFT, DPO, KTO, ORPO, CPO, GRPO, RLOO, and
    PPO as it was.
    """

    def show() -> None:
        given = read_flags(flags)
        for number, settings in enumerate(read_file(Path(file), trainer)):
            if number:
                say()
            found = translate(fill_in(settings, given))
            for line in str(found).splitlines():
                say(line)
            for line in found.remarks:
                say(f"# {line}")

    launch(show)
