"""Settings that have another name here, by lmgym/runs/other_names, and a line on each of those without one."""

import functools
import importlib
from collections.abc import Mapping
from typing import Any

from lmgym.apps.migration.commands import Translation, as_word, display, holds_code
from lmgym.config import check_ranges
from lmgym.errors import InputError
from lmgym.origin import names_code_or_address
from lmgym.runs.fields import flag_types, rebuild
from lmgym.runs.flags import read_flag
from lmgym.runs.launch import STAGES as PACKAGES
from lmgym.runs.launching import FORMS
from lmgym.runs.other_names.answers import Answer
from lmgym.runs.other_names.lookup import find

TRUST = {"trust_remote_code"}
"""flags with which the user trusts a stranger's code; a file's word is not enough"""


def experiment_of(word: str, name: str | None = None) -> str:
    """The module of the experiment that `lmgym train WORD` runs, or of another of its stage."""
    form = FORMS[word]
    return f"{PACKAGES[form.stage]}.experiments.{name or form.experiment}"


def flag_of(library: str, name: str, stage: str) -> str:
    """The flag of a setting, or the setting's own name where no flag is the same."""
    answer = find(library, name, stage)
    return answer.flag if answer and answer.flag else name


def sentence_of(library: str, name: str, stage: str) -> str:
    """Why a setting has no flag."""
    answer = find(library, name, stage)
    return str(answer) if answer else "no equivalent"


def rename(found: Translation, library: str, left: Mapping[str, Any], module: str) -> None:
    """Settings as flags of an experiment, converted by the table; a line on each that has none.

    What the file does not tell, what is code or an address, and a value without a meaning here are asked for.
    """
    stage = FORMS[found.command.partition(" ")[0]].stage
    answers = {name: find(library, name, stage) for name in left}
    # products of other flags come last
    late = {name for name, answer in answers.items() if answer and answer.form and answer.form["times"]}
    sources: dict[str, str] = {}
    sentences: dict[str, list[str]] = {}
    for name in sorted(left, key=lambda name: name in late):
        value, answer, what = left[name], answers[name], f"{name}={display(left[name])}"
        if value is None:
            continue
        if answer is None or not answer.flag:
            sentences.setdefault(str(answer or "no equivalent"), []).append(what)
            continue
        if answer.flag in sources:
            found.lines.append(f"{what}: --{answer.flag} is already from {sources[answer.flag]}")
        elif _give(found, answer, what, value, hints_of(module)):
            sources[answer.flag] = name
    found.lines += [f"{', '.join(settings)}: {sentence}" for sentence, settings in sentences.items()]


def _give(found: Translation, answer: Answer, what: str, value: Any, hints: Mapping[str, Any]) -> bool:
    """Gives a flag its value, or asks for it; False if the value means no flag."""
    flag = answer.flag
    assert flag is not None, "sentences are lines"
    if holds_code(value):
        found.ask(flag, f"{what}, which only the script knows")
        return True
    try:
        value = answer.convert(value, found.flags)
    except ValueError as error:
        found.ask(flag, f"{what}; {error}")
        return True
    if value is None:
        return False
    if flag in TRUST:
        if value is True:
            found.lines.append(f"{what}: add --{flag} if you trust the code in the model's folder")
    elif flag not in hints:
        found.lines.append(f"{what}: the experiment has no --{flag}")
    elif isinstance(value, str) and names_code_or_address(value):
        found.ask(flag, f"{what} names code or an address: give it yourself if you trust the file")
    else:
        found.flags[flag] = value
    return True


def check(found: Translation, first: tuple[str, ...], module: str, neutral: Mapping[str, Any]) -> None:
    """Asks for values that their flags do not take, and leaves out flags that the method does not read.

    `neutral` has values that mean nothing and are left out without a line.
    """
    config, values = importlib.import_module(module).CONFIG, {}
    for flag, value in found.flags.copy().items():
        values[flag], fault = parse(module, flag, as_word(value))
        if fault:
            values.pop(flag)
            found.ask(flag, f"{flag}={display(value)} is not taken: {fault}")
    method = {"method": first[1]} if first else {}
    for flag in sorted(getattr(rebuild(config, method | values), "unread", set()) & found.flags.keys()):
        value = found.flags.pop(flag)
        if flag not in neutral or value != neutral[flag]:
            found.lines.append(f"--{flag} {display(value)}: the method does not read it")


@functools.cache
def parse(module: str, flag: str, word: str) -> tuple[Any, str]:
    """The value of a flag's word, and why an experiment does not take it."""
    config = importlib.import_module(module).CONFIG
    try:
        _, value = read_flag(f"--{flag}", [word], hints_of(module))
        check_ranges(rebuild(config, {flag: value}))
    except InputError as error:
        return None, str(error)
    return value, ""


@functools.cache
def hints_of(module: str) -> dict[str, Any]:
    """The annotation of every flag of an experiment."""
    return flag_types(importlib.import_module(module).CONFIG)
