"""The text of `--help`: the settings that people use first, or with `--help all` every one, with a config's values."""

import dataclasses
import inspect
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Annotated, Any, get_type_hints

from lmgym.config.meanings import First
from lmgym.config.ranges import Preferred, UpTo
from lmgym.console import reader_may_leave, say
from lmgym.runs.fields import fields_of, flag_texts, flag_types, flatten, rebuild

USAGE = "LMGYM_USAGE"
"""environment variable of the command that launched an experiment, without its flags"""
HELP = frozenset({"-h", "--help"})
ALL = "all"
"""behind --help: every setting"""


def split_help(arguments: Iterable[str]) -> tuple[list[str], str]:
    """(the arguments that do not ask for help, what is asked for: "first", "all", or "" for no help)."""
    rest: list[str] = []
    asked, behind = "", False
    for word in arguments:
        name, _, value = word.partition("=")
        if name in HELP or (behind and word == ALL):
            asked = ALL if ALL in (asked, word, value) else "first"
        else:
            rest.append(word)
        behind = name in HELP
    return rest, asked


def first_settings(config: object) -> list[str]:
    """The settings of a config and of its groups that are marked as `First`, in the order of declaration."""
    groups = [value for _, value in fields_of(config) if dataclasses.is_dataclass(value)]
    hints = {n: hint for one in (config, *groups) for n, hint in get_type_hints(type(one), include_extras=True).items()}
    return [name for name in flatten(config) if First() in getattr(hints[name], "__metadata__", ())]


def print_help(config: Any, asked: str, prints: bool) -> None:
    """Prints the help of a config: the settings that are marked as `First`, or all, also where none is marked.

    The values are those of the config, or of what its method `as_resolved()` returns, without those that are `unread`;
    below its docstring stands its `heading`, if it has one. USAGE in the environment is the command to show in its
    usage line. Without `prints` nothing is said: another rank does.
    """
    import tyro  # imported only when needed

    about = "\n\n".join(filter(None, [inspect.getdoc(type(config)), getattr(config, "heading", "")]))
    unread = set(getattr(config, "unread", ()))
    if resolved := getattr(config, "as_resolved", None):
        config = resolved()
    # plain numbers and words: tyro would mix up the types of equal values
    of_type = {UpTo: int, Preferred: str}
    config = rebuild(config, {n: of_type[type(v)](v) for n, v in flatten(config).items() if type(v) in of_type})
    every, first = flatten(config).keys() - unread, [name for name in first_settings(config) if name not in unread]
    shown = _only(config, first) if first and asked != ALL else _without(config, unread)
    with reader_may_leave(), suppress(SystemExit):
        tyro.cli(
            type(shown), default=shown, args=["--help"], config=(tyro.conf.OmitArgPrefixes,), use_underscores=True,
            description=about, prog=os.environ.get(USAGE), console_outputs=prints,
        )  # fmt: skip
    if prints and first and asked != ALL:
        command = " ".join(filter(None, [os.environ.get(USAGE), "--help all"]))
        say(f"{len(first)} of {len(every)} flags; {command} lists them all, under their subjects")


def _only(config: Any, names: Collection[str]) -> Any:
    """A dataclass of these settings alone, with their values and texts."""
    import tyro

    values, hints, texts = flatten(config), flag_types(config), flag_texts(config)
    described: Any = {name: Annotated[hints[name], tyro.conf.arg(help=texts.get(name))] for name in names}
    spaces = [(name, described[name], dataclasses.field(default=values[name])) for name in names]
    return dataclasses.make_dataclass(type(config).__name__, spaces, frozen=True)()


def _without(config: Any, names: Collection[str]) -> Any:
    """The config, of a type whose help leaves out these settings, also of its groups."""
    import tyro

    suppressed: Any = tyro.conf.Suppress
    hints, annotations, changed = get_type_hints(type(config), include_extras=True), dict[str, Any](), dict[str, Any]()
    for name, value in fields_of(config):
        if dataclasses.is_dataclass(value):
            changed[name] = _without(value, names)
            annotations[name] = type(changed[name])
        elif name in names:
            changed[name], annotations[name] = value, suppressed[hints[name]]
    if all(kind is type(getattr(config, name)) for name, kind in annotations.items()):
        return config
    spaces = {name: dataclasses.field(default=value) for name, value in changed.items()}
    kind: Any = type(type(config).__name__, (type(config),), spaces | {"__annotations__": annotations})
    return dataclasses.dataclass(frozen=True)(kind)(**dict(fields_of(config)) | changed)
