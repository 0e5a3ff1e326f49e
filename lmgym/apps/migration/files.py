"""The commands here for what a script or config of another library trains."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.dotted_libraries import OPENRLHF, VERL
from lmgym.apps.migration.launches import flat, read_launches, settings
from lmgym.apps.migration.libraries import AXOLOTL, LLAMA_FACTORY, NEUTRAL, SILENT, Library
from lmgym.apps.migration.names import NAMES
from lmgym.apps.migration.renaming import check, experiment_of, flag_of, rename
from lmgym.apps.migration.translation import translate
from lmgym.apps.migration.trl_launches import read_commands
from lmgym.apps.migration.trl_scripts import Settings, fill_in, read_file, read_flags
from lmgym.errors import InputError
from lmgym.runs.launching import FORMS

LIBRARIES = {"axolotl": AXOLOTL, "openrlhf": OPENRLHF, "verl": VERL, "llamafactory": LLAMA_FACTORY}


def of_trl(file: Path, flags: tuple[str, ...], trainer: str | None) -> Iterator[Translation]:
    """The command for each of TRL's trainers in a file. Raises InputError for a file with none."""
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
