"""`lmgym from LIBRARY FILE`: the commands here for what another library's script or config trains."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.dotted_libraries import OPENRLHF, VERL
from lmgym.apps.migration.launches import flat, read_launches, settings
from lmgym.apps.migration.libraries import AXOLOTL, LLAMA_FACTORY, NEUTRAL, SILENT, Library
from lmgym.apps.migration.renaming import check, experiment_of, flag_of, rename
from lmgym.apps.migration.translation import translate
from lmgym.apps.migration.trl_scripts import KINDS, Settings, fill_in, read_file, read_flags
from lmgym.console import say
from lmgym.errors import InputError
from lmgym.runs.launch import launch
from lmgym.runs.launching import FORMS

LIBRARIES = {"axolotl": AXOLOTL, "openrlhf": OPENRLHF, "verl": VERL, "llamafactory": LLAMA_FACTORY}
NAMES = {"trl": "TRL", "axolotl": "axolotl", "openrlhf": "OpenRLHF", "verl": "verl", "llamafactory": "LLaMA-Factory"}


@click.command(name="from", context_settings={"ignore_unknown_options": True})
@click.argument("library", type=click.Choice([*NAMES]))
@click.argument("file")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS]...")
@click.option("--trainer", type=click.Choice([*KINDS.values()]), help="of a config of TRL that does not tell")
def from_library(library: str, file: str, flags: tuple[str, ...], trainer: str | None) -> None:
    """Print the command here for what another library's script or config trains, with what it leaves to you.

    FILE is a YAML or JSON config, a shell script, or a Python script or notebook; it is read, never run. Names in
    capitals are to be filled in, and each setting without an equivalent has a line. FLAGS are those that it was
    launched with.
    """

    def show() -> None:
        found = of_trl(Path(file), flags, trainer) if library == "trl" else of_library(library, Path(file), flags)
        for number, one in enumerate(found):
            if number:
                say()
            for line in str(one).splitlines():
                say(line)
            for line in one.remarks:
                say(f"# {line}")

    launch(show)


def of_trl(file: Path, flags: tuple[str, ...], trainer: str | None) -> Iterator[Translation]:
    """The command for each of TRL's trainers in a file. Raises InputError for a file with none."""
    from lmgym.apps.migration.trl_launches import read_commands

    given = read_flags(flags)
    found: list[Settings] = (
        read_commands(file, trainer) if file.suffix in (".sh", ".bash") else read_file(file, trainer)
    )
    for one in found:
        yield translate(fill_in(one, given))


def of_library(library: str, file: Path, flags: tuple[str, ...]) -> Iterator[Translation]:
    """The command for each launch of a library in a file. Raises InputError for a file with none."""
    rules, sections = LIBRARIES[library], None if library == "verl" else ()
    found = []
    for one in read_launches(file, rules.programs, NAMES[library]):
        values = flat(one.values, sections) | settings(flags)
        try:
            found.append((rules.word_of(one.program, values), values))
        except InputError as error:
            fault = error
    if not found:
        raise InputError(f"{file}: {fault}")
    for word, values in found:
        yield translate_launch(NAMES[library], rules, word, values)


def translate_launch(library: str, rules: Library, word: str, values: Mapping[str, Any]) -> Translation:
    """The command that trains as a library would by these settings, with its defaults where they differ."""
    stage = FORMS[word].stage
    given = {name: value for name, value in values.items() if value not in (None, "")}
    flags = {flag_of(library, name, stage) for name in given}
    defaults = {
        name: value for name, value in rules.defaults[stage].items() if flag_of(library, name, stage) not in flags
    }
    left = {name: value for name, value in (defaults | given).items() if name not in rules.unimportant}
    translation = Translation(word)
    if words := left.pop("words", None):
        translation.lines.append(f"{display(words)}: settings that only the script knows")
    translation.flags |= NEUTRAL if stage == "ppo" else {}
    rules.prepare(translation, left, stage)
    if (method := translation.flags.get("method")) in FORMS and word == "ppo":
        translation.command = word = method
        translation.flags.pop("method")
    module = experiment_of(word)
    rename(translation, library, left, module)
    if "model" not in translation.flags and "model" not in translation.asked:
        translation.ask("model", "none in the file")
    # a flag that is asked for has no value of its own
    for flag in translation.asked:
        translation.flags.pop(flag, None)
    check(translation, FORMS[word].flags, module, SILENT)
    return translation
