"""Command-line flags for every field of an experiment's config, with the config's values as defaults.

tyro writes the help and parses the values (`float | None`, `Literal`, tuples). The flags themselves are parsed here:
launchers append `--local_rank`, booleans have four spellings, and errors should be one line, which a log file keeps
readable, rather than a box. Nothing heavy is imported: `--help` answers at once.
"""

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import os
import re
import sys
import textwrap
import time
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from lmgym.console import printed_line, reader_may_leave, say
from lmgym.errors import InputError, RunStopped, ServerError, bounded, misspelt, one_line, shown
from lmgym.runs.locks import refuse_if_held
from lmgym.runs.process_state import end_process

T = TypeVar("T")

USAGE = "LMGYM_USAGE"
"""environment variable of the command that launched an experiment, without its flags"""
HELP = frozenset({"-h", "--help"})
FLAG = re.compile(r"--[A-Za-z_]")
HYDRA = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)+)=")
"""a setting as Hydra writes it: data.train_batch_size=1024"""
# a launcher kills the other ranks once one exits: they give rank 0 this long to print the error
HEAD_START_SECONDS = 5.0
LONGEST_FLAG, MOST_UNKNOWN = 80, 40
"""characters of an unknown flag, and flags, that are printed"""
_annotations: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)
TRUTH = {"true": True, "1": True, "false": False, "0": False}


def override(config: T, arguments: Sequence[str] | None = None) -> T:
    """The config with the fields given by `arguments` (default: the command line) replaced.

    If the config has the method `refuse_unread(names)`, it is called with the fields that were given, and if it has
    `with_given(names)`, that returns the config. An error is printed in one line on stderr, by rank 0 only, and every
    rank exits with 2.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    helping = bool(HELP.intersection(arguments))
    try:
        given = _read(config, [word for word in arguments if word not in HELP])
        changed = _changed(config, given)
        if helping:
            _help(changed)
        if refuse_unread := getattr(changed, "refuse_unread", None):
            refuse_unread(given)
        run = getattr(changed, "run", changed)
        output, dry = getattr(run, "output", None), getattr(run, "dry_run", False)
        if output and not dry and _is_main():
            refuse_if_held(output)  # before libraries and data are loaded; the run takes the lock later
    except (InputError, RunStopped) as error:
        if helping:
            _help(config)
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


def flatten(config: object) -> dict[str, object]:
    """All fields by name, including those of the groups, in the order of declaration."""
    flat: dict[str, object] = {}
    for name, value in _fields(config):
        inner = _fields(value) if dataclasses.is_dataclass(value) else [(name, value)]
        for key, item in inner:
            assert key not in flat, f"two fields are called {key}, but flags need unique names"
            flat[key] = item
    return flat


def _fields(config: object) -> list[tuple[str, object]]:
    return [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]  # type: ignore[arg-type]


def flag_types(config: object) -> dict[str, Any]:
    """The annotation of every flag. Asserts that names are unique and not reserved, and that groups nest once."""
    hints = dict(_annotations(type(config)))
    for _, value in _fields(config):
        if dataclasses.is_dataclass(value):
            assert not any(dataclasses.is_dataclass(item) for _, item in _fields(value)), "groups nest one level only"
            hints |= _annotations(type(value))
    hints = {name: hints[name] for name in flatten(config)}
    assert not {"help", "local_rank"} & hints.keys(), "help and local_rank are reserved"
    return hints


def flag_texts(config: object) -> dict[str, str]:
    """The text of each flag: the string below its field, on one line."""
    kinds: list[Any] = [type(config), *(type(value) for _, value in _fields(config) if dataclasses.is_dataclass(value))]
    return {name: text for kind in kinds for name, text in _field_texts(kind).items()}


@functools.cache
def _field_texts(kind: type) -> dict[str, str]:
    """The string below each field of a dataclass and of its bases; empty where there is no source."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            [made] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
            assert isinstance(made, ast.ClassDef)
            for one, following in pairwise(made.body):
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    text = following.value if isinstance(following, ast.Expr) else None
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        found[one.target.id] = " ".join(text.value.split())
    return found


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
    else:
        time.sleep(HEAD_START_SECONDS)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        # with connections to other ranks open, an ordinary exit may abort in their threads and lose the code
        sys.stdout.flush()
        end_process(error.exit_code)
    raise SystemExit(error.exit_code) from None


def _is_main() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _help(config: object) -> NoReturn:
    """Prints the help and exits with 0. USAGE in the environment is the command to show in its usage line.

    The values are those of the config, or of what its method `as_resolved()` returns, without those that are `unread`;
    below its docstring stands its `heading`, if it has one.
    """
    import tyro  # imported only when needed

    kind, unread = type(config), getattr(config, "unread", ())
    if resolved := getattr(config, "as_resolved", None):
        config = resolved()
    markers = (tyro.conf.OmitArgPrefixes,)
    arguments = {"default": config, "args": ["--help"], "config": markers, "use_underscores": True}
    about = "\n\n".join(filter(None, [inspect.getdoc(kind), getattr(config, "heading", "")]))
    arguments["default"] = shown_settings = _without(config, unread)
    with reader_may_leave():
        tyro.cli(
            type(shown_settings), **arguments, description=about, prog=os.environ.get(USAGE), console_outputs=_is_main()
        )  # type: ignore[call-overload]
    raise SystemExit(0)


def _without(config: Any, names: Collection[str]) -> Any:
    """The config, of a type whose help leaves out these settings, also of its groups."""
    import tyro

    suppressed: Any = tyro.conf.Suppress
    hints, annotations, changed = get_type_hints(type(config), include_extras=True), dict[str, Any](), dict[str, Any]()
    for name, value in _fields(config):
        if dataclasses.is_dataclass(value):
            changed[name] = _without(value, names)
            annotations[name] = type(changed[name])
        elif name in names:
            changed[name], annotations[name] = value, suppressed[hints[name]]
    if all(kind is type(getattr(config, name)) for name, kind in annotations.items()):
        return config
    spaces = {name: dataclasses.field(default=value) for name, value in changed.items()}
    kind: Any = type(type(config).__name__, (type(config),), spaces | {"__annotations__": annotations})
    return dataclasses.dataclass(frozen=True)(kind)(**dict(_fields(config)) | changed)


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
            raise InputError(f"unexpected argument {shown(argument)}; flags look like --name value, --help lists them")
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
        raise InputError(f"unknown flag {advice[0]} (--help lists them all)")
    if len(unknown) > MOST_UNKNOWN:
        advice.append(f"and {len(unknown) - MOST_UNKNOWN:,} more")
    error = InputError(f"{len(unknown):,} unknown flags (--help lists those that there are)")
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


def rebuild(config: T, values: dict[str, object]) -> T:
    """The config with the named fields replaced, its groups first; each dataclass is checked once, when complete."""
    replace: Callable[..., Any] = dataclasses.replace
    changed: dict[str, Any] = {}
    for name, value in _fields(config):
        if not dataclasses.is_dataclass(value):
            changed |= {name: values[name]} if name in values else {}
        elif inner := {key: values[key] for key, _ in _fields(value) if key in values}:
            changed[name] = replace(value, **inner)
    return replace(config, **changed) if changed else config
