"""The one place that makes a run's paths absolute, so that code of users that changes the folder changes nothing."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from lmgym.console import print_as_given
from lmgym.errors import InputError, shown_path
from lmgym.runs.fields import flatten, rebuild


class HasOutput(Protocol):
    """The config of a stage."""

    @property
    def output(self) -> str: ...


T = TypeVar("T", bound=HasOutput)

PATHS = frozenset(
    {
        *("output", "model", "reference", "critic", "deepspeed", "dataset", "eval_dataset", "prompts", "eval_prompts"),
        *("probe_data", "reference_logprobs", "reward", "scorers", "eval_scorer", "monitor_scorers", "monitor_scorer"),
        *("opponents", "replay", "capabilities", "capabilities_data", "environment"),
    }
)
"""settings that name a file or folder: PATH, or a list such as NAME=PATH,NAME=PATH#HOW"""
POOL = "pool:"
ENVIRONMENTS = "lmgym.environments"
"""the group of entry points whose names begin those of environments: lmgym/environments/named.py"""
CLASS_OF_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
WORDS = ("head",)  # a critic that is none of a folder


def with_absolute_paths(config: T) -> T:
    """The config with absolute paths; they are printed as they were given. Names that are no path here stay."""
    given = flatten(config) | {"output": config.output}
    _refuse_exchanged(given)
    return rebuild(config, {name: absolute_items(name, value) for name, value in given.items() if name in PATHS})


def _refuse_exchanged(given: Mapping[str, object]) -> None:
    """Raises InputError if the model is a file and the data a model's folder."""
    model = str(given.get("model", ""))
    for name in ("dataset", "prompts"):
        data = str(given.get(name) or "")
        if os.path.isfile(os.path.expanduser(model)) and os.path.isfile(os.path.expanduser(f"{data}/config.json")):
            raise InputError(
                f"--model {shown_path(model)} is a file and --{name} {shown_path(data)} a model's folder; needed, the "
                f"other way round: --model {shown_path(data)} --{name} {shown_path(model)}"
            )


def absolute_items(setting: str, value: object) -> object:
    """The value of a setting with absolute paths, if it is one of PATHS."""
    if setting not in PATHS or not isinstance(value, str):
        return value
    if setting == "output":
        return absolute(value)
    if setting == "environment":  # its settings have = and commas of their own
        file, py, rest = value.partition(".py:")
        return f"{absolute(f'{file}.py')}:{rest}" if py else value
    return ",".join(_absolute_item(setting, item) for item in value.split(","))


def environment_folder(variable: str, name: str) -> Path:
    """The folder of a library's own environment: that of the variable, or NAME in lmgym's cache; it need not exist."""
    if given := os.environ.get(variable, "").strip():
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "lmgym" / name


def absolute(path: str) -> str:
    """A path that stays the same when the working folder changes."""
    found = os.path.abspath(os.path.expanduser(path))
    print_as_given(found, path)
    return found


def names_environment(words: str) -> bool:
    """True for SCHEME:NAME of a scheme that is installed, and for FILE.py:CLASS; both may have settings behind a ?."""
    from importlib import metadata  # which most commands do not need

    name = words.partition("?")[0]
    scheme, colon, _ = name.partition(":")
    return bool(CLASS_OF_FILE.fullmatch(name) or (colon and metadata.entry_points(group=ENVIRONMENTS, name=scheme)))


def _absolute_item(setting: str, item: str) -> str:
    """[NAME=]PATH, PATH#HOW, FILE.py:FUNCTION, PATH:LINE or pool:PATH with its path made absolute, if it exists."""
    if setting == "opponents":
        return POOL + absolute(item.removeprefix(POOL)) if item.startswith(POOL) else item
    name, equals, path = item.rpartition("=")
    colon = path.rfind(":")
    is_end = setting == "replay" or path[: max(colon, 0)].endswith(".py")
    ends = [len(path), colon if is_end else path.find("#")]
    for end in ends:
        if end > 0 and path[:end].strip() and path not in WORDS and _exists(setting, path[:end].strip()):
            return f"{name}{equals}{absolute(path[:end].strip())}{path[end:]}"
    return item


def _exists(setting: str, path: str) -> bool:
    test = os.path.isfile if setting == "deepspeed" else os.path.exists
    return test(os.path.expanduser(path))
