"""Any field of an experiment's config from the command line: flat flags, defaults from the config itself.

tyro writes the help and reads the values (it knows `float | None`, `Literal`, tuples). The flags are read here, because
a launcher appends `--local_rank`, because booleans come in four spellings, and because a mistake should read as one
line that survives a log file rather than as a box. Nothing heavy is imported: `--help` answers at once.
"""

import contextlib
import dataclasses
import difflib
import io
import os
import re
import sys
import time
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from lmgym.console import say
from lmgym.errors import InputError, RunStopped, one_line, shown
from lmgym.runs.locks import refuse_if_held

T = TypeVar("T")

FLAG = re.compile(r"--[A-Za-z_]")
# usual names elsewhere that are spelt unlike ours; the first that an experiment has is suggested
SYNONYMS = {
    "lr": ("learning_rate",),
    "wd": ("weight_decay",),
    "bs": ("global_batch",),
    "batch_size": ("global_batch",),
    "train_batch_size": ("global_batch",),
    "per_device_train_batch_size": ("micro_batch",),
    "minibatch_size": ("micro_batch",),
    "num_epochs": ("epochs",),
    "num_train_epochs": ("epochs",),
    "steps": ("max_updates",),
    "max_steps": ("max_updates",),
    "total_steps": ("max_updates",),
    "kl_coef": ("init_kl_coef",),
    "beta": ("init_kl_coef", "adam_beta2"),
    "gae_lambda": ("lam",),
    "clip_range": ("cliprange",),
    "lora_r": ("lora_rank",),
    "model_name_or_path": ("model",),
    "output_dir": ("output",),
    "data": ("dataset", "prompts"),
    "dataset": ("prompts",),
}
# a launcher kills the other ranks once one exits: they leave rank 0 this long to say what is wrong
HEAD_START_SECONDS = 5.0
LONGEST_FLAG = 80
TRUTH = {"true": True, "1": True, "false": False, "0": False}


def override(config: T, arguments: Sequence[str] | None = None) -> T:
    """The config with every field that `arguments` (default: the command line) name replaced.

    A mistake is printed in one line on stderr, by rank 0 alone, and every rank exits with 2.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    hints = _flag_types(config)
    if "-h" in arguments or "--help" in arguments:
        _help(config)
    try:
        # a dict: the last of two flags of one name stands
        changed = _rebuild(config, dict(_read(flag, values, hints) for flag, values in _split(arguments)))
        _refuse_folder_in_use(changed)
    except (InputError, RunStopped) as error:
        exit_with_error(error)
    return changed


def _refuse_folder_in_use(config: object) -> None:
    """Told at once, rather than after the libraries and the data are loaded; the run itself takes the lock."""
    output, dry = getattr(config, "output", None), getattr(getattr(config, "run", None), "dry_run", False)
    if output and not dry and _speaks():
        refuse_if_held(output)


def flatten(config: object) -> dict[str, object]:
    """Every field by its name, those of the groups included, in the order in which they are declared."""
    flat: dict[str, object] = {}
    for name, value in _fields(config):
        inner = _fields(value) if dataclasses.is_dataclass(value) else [(name, value)]
        for key, item in inner:
            assert key not in flat, f"two fields are called {key}: flat flags could not tell them apart"
            flat[key] = item
    return flat


def _fields(config: object) -> list[tuple[str, object]]:
    return [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]  # type: ignore[arg-type]


def _flag_types(config: object) -> dict[str, Any]:
    """The annotation of every flag. Asserts that names are unique, that groups nest once and that no flag is ours."""
    hints = dict(get_type_hints(type(config)))
    for _, value in _fields(config):
        if dataclasses.is_dataclass(value):
            assert not any(dataclasses.is_dataclass(item) for _, item in _fields(value)), "groups nest one level only"
            hints |= get_type_hints(type(value))
    hints = {name: hints[name] for name in flatten(config)}
    assert not {"help", "local_rank"} & hints.keys(), "help and local_rank are flags of their own"
    return hints


def exit_with_error(error: InputError | RunStopped) -> NoReturn:
    """Ends this process with the error's code; under a launcher every rank fails alike, and rank 0 alone says why.

    One that a rank alone has met is said by that rank.
    """
    if _speaks() or error.alone:
        word = "stopped" if error.outcome == "interrupted" else "error"
        if isinstance(error, RunStopped):
            say(error=True)  # a progress bar may stand in the line
        say(f"{word}: {error}", error=True)
    else:
        time.sleep(HEAD_START_SECONDS)
    if _is_joined_to_others():
        # with other ranks' connections open, an ordinary end may abort in their threads and lose the code
        sys.stdout.flush()
        os._exit(error.exit_code)
    raise SystemExit(error.exit_code) from None


def _is_joined_to_others() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _speaks() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _help(config: object) -> None:
    """Prints the help and exits with 0."""
    import tyro  # here: who takes no flags needs none of it

    markers = (tyro.conf.OmitArgPrefixes,)
    arguments = {"default": config, "args": ["--help"], "config": markers, "use_underscores": True}
    tyro.cli(type(config), **arguments, console_outputs=_speaks())  # type: ignore[call-overload]


def _split(arguments: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Pairs of a flag (`--learning_rate`) and the values behind it, without the launcher's `--local_rank`."""
    pairs: list[tuple[str, list[str]]] = []
    for argument in arguments:
        if FLAG.match(argument):
            flag, joined, value = argument.partition("=")
            pairs.append(("--" + flag[2:].replace("-", "_"), [value] if joined else []))
        elif pairs:
            pairs[-1][1].append(argument)
        else:
            raise InputError(f"unexpected argument {shown(argument)}; flags look like --name value, --help lists them")
    return [(flag, values) for flag, values in pairs if flag != "--local_rank" or len(values) > 1]


def _read(flag: str, values: list[str], hints: dict[str, Any]) -> tuple[str, object]:
    """The field that a flag names and its value. Raises InputError where there is none or the value does not fit."""
    name = flag.removeprefix("--")
    negated = name.removeprefix("no_")
    if name not in hints and _is_bool(hints.get(negated)):
        if values:
            raise InputError(f"{flag} takes no value; found {shown(' '.join(values))}; write --{negated} true or false")
        return negated, False
    if name not in hints:
        known = [*hints, *(f"no_{key}" for key, hint in hints.items() if _is_bool(hint))]
        nearest = _nearest(name[:LONGEST_FLAG], known)
        raise InputError(
            f"unknown flag {one_line(flag, LONGEST_FLAG)}; did you mean --{nearest}? (--help lists them all)"
        )
    parse = _parse_bool if _is_bool(hints[name]) else _parse_with_tyro
    return name, parse(flag, values, hints[name])


def _nearest(name: str, known: Sequence[str]) -> str:
    """The flag that was most likely meant: by its name elsewhere, by its initials (`gb`), or spelt most alike."""
    if usual := next((flag for flag in SYNONYMS.get(name, ()) if flag in known), None):
        return usual
    initials = {"".join(word[:1] for word in flag.split("_")): flag for flag in reversed(known)}
    return initials.get(name) or max(known, key=lambda flag: difflib.SequenceMatcher(None, name, flag).ratio())


def _is_bool(hint: Any) -> bool:
    """Whether a field is a boolean, or one that may be None."""
    return hint is bool or set(get_args(hint)) == {bool, type(None)}


def _parse_bool(flag: str, values: list[str], hint: Any) -> bool | None:
    word = " ".join(values).lower() or "true"
    if word == "none" and hint is not bool:
        return None
    if word not in TRUTH:
        none = "" if hint is bool else "none, "
        raise _misfit(flag, values, f"true, false, 1 or 0, {none}or no value for true")
    return TRUTH[word]


def _parse_with_tyro(flag: str, values: list[str], hint: Any) -> object:
    """One value by its annotation. A parser for one flag at a time knows which flag was wrong, and runs no check of
    the config (`__post_init__`) before all flags are in.
    """
    import tyro

    one = dataclasses.make_dataclass("One", [("value", hint)])
    # joined by "=", a value may start with a dash
    arguments = [f"--value={values[0]}"] if len(values) == 1 else ["--value", *values]
    try:
        # tyro 1.0 prints errors of values even when asked not to
        with contextlib.redirect_stderr(io.StringIO()):
            return tyro.cli(one, args=arguments, console_outputs=False).value
    except SystemExit:
        raise _misfit(flag, values, _in_words(hint)) from None


def _misfit(flag: str, values: list[str], needed: str) -> InputError:
    found = shown(" ".join(values)) if values else "no value"
    return InputError(f"{flag}: found {found}; needed {needed}")


def _in_words(hint: Any) -> str:
    """An annotation as a person would say it: `float or None`, `one of 'bce', 'mse'`, `any number of str`."""
    if hint is type(None):
        return "None"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_in_words(part) for part in get_args(hint))
    if get_origin(hint) is list or get_args(hint)[1:] == (Ellipsis,):
        return f"any number of {_in_words(get_args(hint)[0])}"
    if get_origin(hint) is tuple:
        return " ".join(_in_words(part) for part in get_args(hint))
    return getattr(hint, "__name__", str(hint))


def _rebuild(config: T, values: dict[str, object]) -> T:
    """The config with the named fields replaced, its groups first; each dataclass checks itself once, when complete."""
    replace: Callable[..., Any] = dataclasses.replace
    changed = {name: values[name] for name, _ in _fields(config) if name in values}
    for name, group in _fields(config):
        if dataclasses.is_dataclass(group):
            inner = {key: values[key] for key, _ in _fields(group) if key in values}
            changed |= {name: replace(group, **inner)} if inner else {}
    return replace(config, **changed) if changed else config
