"""Command-line flags for every field of an experiment's config, with the config's values as defaults.

tyro writes the help and parses the values (`float | None`, `Literal`, tuples). The flags themselves are parsed here:
launchers append `--local_rank`, booleans have four spellings, and errors should be one line, which a log file keeps
readable, rather than a box. Nothing heavy is imported: `--help` answers at once.
"""

import contextlib
import dataclasses
import functools
import io
import os
import re
import sys
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from lmgym.console import printed_line, say
from lmgym.errors import InputError, RunStopped, ServerError, bounded, misspelt, one_line, shown
from lmgym.runs.fields import flag_texts, flag_types, rebuild
from lmgym.runs.flag_help import print_help, split_help
from lmgym.runs.locks import refuse_if_held
from lmgym.runs.process_state import end_process

T = TypeVar("T")

FLAG = re.compile(r"--[A-Za-z_]")
HYDRA = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)+)=")
"""a setting as Hydra writes it: data.train_batch_size=1024"""
# a launcher kills the other ranks once one exits: they give rank 0 this long to print the error
HEAD_START_SECONDS = 5.0
LONGEST_FLAG, MOST_UNKNOWN = 80, 40
"""characters of an unknown flag, and flags, that are printed"""
TRUTH = {"true": True, "1": True, "false": False, "0": False}


def override(config: T, arguments: Sequence[str] | None = None) -> T:
    """The config with the fields given by `arguments` (default: the command line) replaced.

    If the config has the method `refuse_unread(names)`, it is called with the fields that were given, and if it has
    `with_given(names)`, that returns the config. An error is printed in one line on stderr, by rank 0 only, and every
    rank exits with 2.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    words, asked = split_help(arguments)
    try:
        given = _read(config, words)
        changed = _changed(config, given)
        if asked:
            _help(changed, asked)
        if refuse_unread := getattr(changed, "refuse_unread", None):
            refuse_unread(given)
        run = getattr(changed, "run", changed)
        output, dry = getattr(run, "output", None), getattr(run, "dry_run", False)
        if output and not dry and _is_main():
            refuse_if_held(output)  # before libraries and data are loaded; the run takes the lock later
    except (InputError, RunStopped) as error:
        if asked:
            _help(config, asked)
        exit_with_error(error)
    return changed


def _read(config: object, arguments: Sequence[str]) -> dict[str, object]:
    """The given fields by name. Raises InputError for flags that the config does not have, or that differ where one is
    given twice; the values of a tuple are taken together.
    """
    hints, texts = flag_types(config), flag_texts(config)
    pairs = _split(arguments)
    _refuse_unknown((flag for flag, _ in pairs), hints)
    given: dict[str, tuple[str, list[str]]] = {}
    for flag, values in pairs:
        name = _field_of(flag, hints)
        assert name is not None, "unknown flags are refused before"
        before = given.get(name, (flag, values))
        if name in given and _takes_several(hints[name]):
            values = [*before[1], *values]
        elif before != (flag, values):
            found = " and ".join(shown(" ".join(words)) for words in ([before[0], *before[1]], [flag, *values]))
            raise InputError(f"--{name} is given twice: {found}; needed: it once: {texts.get(name, name)}")
        given[name] = flag, values
    return dict(read_flag(flag, values, hints, texts) for flag, values in given.values())


def _changed(config: T, given: Mapping[str, object]) -> T:
    """The config with the given fields, and with what follows from them if it has the method `with_given(names)`."""
    changed = rebuild(config, dict(given))
    if with_given := getattr(changed, "with_given", None):
        changed = with_given(given)
    return changed


def exit_with_error(error: InputError | RunStopped | ServerError) -> NoReturn:
    """Exits with the error's code, after printing it on rank 0 only: under a launcher all ranks raise the same error.

    An error of one rank alone is printed by that rank.
    """
    if _is_main() or error.alone:
        prefix = "stopped" if error.outcome == "interrupted" else "error"
        line = printed_line(f"{prefix}: {error}")
        if isinstance(error, RunStopped):
            say(error=True)  # a progress bar may occupy the line
            say(line, error=True)  # whole: it quotes no input, and says where the checkpoint is
        else:
            say(bounded(line), error=True)
            for detail in error.details if isinstance(error, InputError) else ():
                say(f"  {bounded(printed_line(detail))}", error=True)
    if not (_is_main() or error.alone) or (isinstance(error, RunStopped) and error.follows):
        sys.stderr.flush()
        time.sleep(HEAD_START_SECONDS)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # with connections to other ranks open, an ordinary exit may abort in their threads and lose the code
        sys.stdout.flush()
        end_process(error.exit_code)
    raise SystemExit(error.exit_code) from None


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _help(config: object, asked: str) -> NoReturn:
    print_help(config, asked, prints=_is_main())
    raise SystemExit(0)


def _split(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Pairs of a flag (`--learning_rate`) and the values after it, without the launcher's `--local_rank`."""
    pairs: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if FLAG.match(argument):
            flag, equals, value = argument.partition("=")
            pairs.append(("--" + flag[2:].replace("-", "_"), [value] if equals else []))
        elif (dotted := HYDRA.match(argument)) and (not pairs or pairs[-1][1]):
            pairs.append(
                ("--" + dotted[1], [argument[dotted.end() :]])
            )  # none of ours has a dot: it is answered as unknown
        elif pairs:
            pairs[-1][1].append(argument)
        else:
            raise InputError(
                f"unexpected argument {shown(argument)}; flags look like --name value, --help all lists them"
            )
    return [(flag, values) for flag, values in pairs if flag != "--local_rank" or len(values) > 1]


def _refuse_unknown(flags: Iterable[str], hints: dict[str, Any]) -> None:
    """Raises InputError for all flags that the experiment does not have, with what to write in place of each."""
    unknown = [flag for flag in dict.fromkeys(flags) if not _field_of(flag, hints)]
    if not unknown:
        return
    advice = [
        f"{one_line(flag, LONGEST_FLAG)}{_advice(flag[2:][:LONGEST_FLAG], hints)}" for flag in unknown[:MOST_UNKNOWN]
    ]
    if len(unknown) == 1:
        raise InputError(f"unknown flag {advice[0]} (--help all lists them)")
    if len(unknown) > MOST_UNKNOWN:
        advice.append(f"and {len(unknown) - MOST_UNKNOWN:,} more")
    error = InputError(f"{len(unknown):,} unknown flags (--help all lists those that there are)")
    error.details = advice
    raise error


def _field_of(flag: str, hints: dict[str, Any]) -> str | None:
    """The field that a flag names, also as `--no_name` of a boolean; None if there is none."""
    name = flag.removeprefix("--")
    negated = name.removeprefix("no_")
    return name if name in hints else negated if _is_bool(hints.get(negated)) else None


def _advice(name: str, hints: dict[str, Any]) -> str:
    """The advice for an unknown flag: by its name elsewhere, or for a misspelling."""
    from lmgym.runs.other_names.lookup import answer, misspelt_name  # a long table

    if known := answer(name, hints):
        return f": {known}"
    flags = [*hints, *(f"no_{key}" for key, hint in hints.items() if _is_bool(hint))]
    if near := misspelt(name, flags):
        return f"; did you mean --{near}?"
    if near := misspelt_name(name):
        return f"; did you mean {near}? {answer(near, hints) or 'it is no setting here'}"
    return ""


def read_flag(
    flag: str, values: list[str], hints: dict[str, Any], texts: Mapping[str, str] = types.MappingProxyType({})
) -> tuple[str, object]:
    """The field that a known flag names, and its value. Raises InputError for an unsuitable value; `texts` say what
    flags take.
    """
    name = _field_of(flag, hints)
    assert name is not None, "unknown flags are refused before"
    if flag != f"--{name}":
        if values:
            raise InputError(f"{flag} takes no value; found {shown(' '.join(values))}; write --{name} true or false")
        return name, False
    if not values and not _is_bool(hints[name]) and not _takes_several(hints[name]):
        words, about = _in_words(hints[name]), texts.get(name, "")
        raise _misfit(flag, values, about if about and "str" in words else f"{words}{about and f': {about}'}")
    if [value.lower() for value in values] == ["none"] and _is_none(hints[name]):
        return name, None
    parse = _parse_bool if _is_bool(hints[name]) else _parse_with_tyro
    return name, parse(flag, values, hints[name])


def _is_none(hint: Any) -> bool:
    """True if the word none is None by this annotation; one of its choices may be called so."""
    parts = get_args(hint)
    return type(None) in parts and not any("none" in get_args(part) for part in parts if get_origin(part) is Literal)


def _takes_several(hint: Any) -> bool:
    """True for the annotation of any number of values."""
    return get_origin(hint) is list or get_args(hint)[1:] == (Ellipsis,)


def _is_bool(hint: Any) -> bool:
    """True for the annotation of a boolean, or of a boolean or None."""
    return hint is bool or set(get_args(hint)) == {bool, type(None)}


def _parse_bool(flag: str, values: list[str], hint: Any) -> bool:
    word = " ".join(values).lower() or "true"
    if word not in TRUTH:
        none = "" if hint is bool else "none, "
        raise _misfit(flag, values, f"true, false, 1 or 0, {none}or no value for true")
    return TRUTH[word]


def _parse_with_tyro(flag: str, values: list[str], hint: Any) -> object:
    """Parses one value by its annotation. A parser per flag knows which flag is wrong, and does not run the config's
    checks (`__post_init__`) before all flags are parsed.
    """
    import tyro

    # joined by "=", a value may start with a dash
    arguments = [f"--value={values[0]}"] if len(values) == 1 else ["--value", *values]
    try:
        # tyro 1.0 prints errors of values even without console_outputs
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(_holder(hint), args=arguments, console_outputs=False).value
    except SystemExit:
        raise _misfit(flag, values, _in_words(hint)) from None


@functools.cache
def _holder(hint: Any) -> Any:
    """A dataclass of one value, with a help text, for which tyro would else search the source in vain at each error."""
    import tyro

    return dataclasses.make_dataclass("Holder", [("value", Annotated[hint, tyro.conf.arg(help="a value")])])


def _misfit(flag: str, values: list[str], needed: str) -> InputError:
    found = shown(" ".join(values)) if values else "no value"
    return InputError(f"{flag}: found {found}; needed {needed}")


def _in_words(hint: Any) -> str:
    """An annotation in words: `float or None`, `one of 'bce', 'mse'`, `any number of str`."""
    if hint is type(None):
        return "None"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_in_words(part) for part in get_args(hint))
    if _takes_several(hint):
        return f"any number of {_in_words(get_args(hint)[0])}"
    if get_origin(hint) is tuple:
        return " ".join(_in_words(part) for part in get_args(hint))
    return getattr(hint, "__name__", str(hint))
