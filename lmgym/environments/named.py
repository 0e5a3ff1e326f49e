"""Environments by name: `games:blackjack`, `gymnasium:FrozenLake-v1?is_slippery=False`, `FILE.py:CLASS`.

Design decisions:
- A scheme is an entry point of the group `lmgym.environments`: the core imports no app, and any package can add one.
- Settings stand behind a question mark, as in an address: name=VALUE&name=VALUE, JSON or Python values, or texts.
- The classes of a file may be ours, or those of a library that a scheme knows, such as a `gymnasium.Env`.
"""

import ast
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import metadata
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from lmgym.environments.engine import hash_of
from lmgym.environments.players import Actor
from lmgym.environments.protocol import Environment, RewardFunction, Task
from lmgym.errors import InputError, did_you_mean, listed, shown, shown_path
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.runs.paths import CLASS_OF_FILE, ENVIRONMENTS
from lmgym.runs.user_code import call_user_code, import_file

Settings = Mapping[str, Any]
SPLITS = TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True)
class NamedEnvironment:
    """Episodes, and who plays the agents that are not trained."""

    name: str
    """as it was typed"""
    environment: Callable[[], Environment]
    tasks: Sequence[Task] = ({},)
    """a single one: episodes differ by their seeds"""
    eval_tasks: Sequence[Task] = ()
    """empty: a part of the tasks, or, of a single one, other seeds"""
    players: Mapping[str, Actor] = field(default_factory=dict)
    """of all other agents, by name"""
    reward_function: RewardFunction | None = None
    """of the scores that the environment requests"""
    trained_agents: int = 1
    """largest number in an episode"""
    reference_lines: Mapping[str, float] = field(default_factory=dict)
    """returns of other players by name, as far as they are known"""
    about: str = ""
    """a line"""

    @cached_property
    def splits(self) -> Mapping[str, Sequence[Task]]:
        """The tasks of `train` and `validation`: `eval_tasks`, or a tenth that is drawn by the seed 0.

        A single task is in both: its episodes have other seeds.
        """
        if len(self.eval_tasks) or len(self.tasks) == 1:
            return {TRAIN: self.tasks, VALIDATION: self.eval_tasks or self.tasks}
        order = np.random.default_rng(0).permutation(len(self.tasks))
        tenth = -(-len(self.tasks) // 10)
        parts = {VALIDATION: np.sort(order[:tenth]), TRAIN: np.sort(order[tenth:])}
        return {split: [self.tasks[i] for i in numbers] for split, numbers in parts.items()}

    def tasks_of(self, split: str) -> Sequence[Task]:
        """The tasks of a split. Raises InputError for another one."""
        if split not in self.splits:
            raise InputError(f"split={shown(split)}; needed: {' or '.join(SPLITS)}")
        return self.splits[split]

    def seed_of(self, split: str, number: int) -> int:
        """The environment's seed for a number: itself, but a hash in the validation of a single task."""
        is_shared = self.splits[TRAIN] is self.splits[VALIDATION]
        return hash_of(VALIDATION, number) if is_shared and split == VALIDATION else number

    def episode(self, split: str, index: int) -> tuple[Task, int]:
        """(task, seed) of an episode in a split, the same for every library that plays it.

        Where tasks end they begin again, with the next seed. Raises InputError for another split.
        """
        if index < 0:
            raise InputError(f"index={index}; needed: 0 or more")
        tasks = self.tasks_of(split)
        return tasks[index % len(tasks)], self.seed_of(split, index // len(tasks))


@dataclass(frozen=True)
class Scheme:
    """A source of environments: what an entry point of the group names."""

    form: str
    """how its environments are named, as `gymnasium:ID`"""
    about: str
    load: Callable[[str, Settings, Any], NamedEnvironment]
    """of the words behind the colon, their settings, and the policy's tokenizer (None: there is none). Raises
    InputError with the command that installs what is missing"""
    names: Callable[[], Iterable[str]] = tuple
    """those that are there; empty if nothing can tell"""
    missing: Callable[[], str] = str
    """the command that installs what is missing; empty if nothing is"""
    is_own: bool = False
    """its names are neither code nor an address: a replay may take one from a file"""
    wrap: Callable[[str, Callable[[], Any], Any], NamedEnvironment | None] = lambda name, make, first: None
    """of a name, what makes environments, and one that was made: those of the library's own kind; None of others"""


def schemes() -> dict[str, Scheme]:
    """All schemes by name, in alphabetical order."""
    return {name: point.load() for name, point in _points().items()}


def _points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in sorted(metadata.entry_points(group=ENVIRONMENTS), key=lambda one: one.name)}


def load_environment(words: str, tokenizer: Any = None) -> NamedEnvironment:
    """The environment of `SCHEME:NAME?SETTINGS` or `FILE.py:CLASS?SETTINGS`.

    Raises InputError for an unknown scheme or name, for one that is not installed, and for code that fails.
    """
    name, _, query = words.partition("?")
    settings = read_settings(words, query)
    if match := CLASS_OF_FILE.fullmatch(name):
        return _of_file(words, match["file"], match["name"], settings)
    scheme, colon, rest = name.partition(":")
    points = _points()
    if not colon or scheme not in points:
        raise InputError(
            f"--environment {shown(words)} is no environment; {did_you_mean(scheme, points)}needed: FILE.py:CLASS, or "
            f"one of {listed(points)} and a colon, as `lmgym env list` shows"
        )
    found: Scheme = points[scheme].load()
    return call_user_code(words, lambda: found.load(rest, settings, tokenizer))


def is_own(words: str) -> bool:
    """True for an environment of a scheme whose names are neither code nor an address."""
    point = _points().get(words.partition(":")[0])
    return point is not None and point.load().is_own


def read_settings(words: str, query: str) -> dict[str, Any]:
    """The settings of `name=VALUE&name=VALUE`. Raises InputError for words without a value, and for a name twice."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as error:
        raise InputError(f"{shown(words)}: {shown(query)} behind the ? has no value; needed: name=VALUE&...") from error
    if len(dict(pairs)) < len(pairs):
        raise InputError(f"{shown(words)} has a setting twice; needed: once each")
    return {name: _value(text) for name, text in pairs}


def refuse_settings(words: str, settings: Settings, known: Sequence[str]) -> None:
    """Raises InputError for settings that an environment does not have."""
    if unknown := [name for name in settings if name not in known]:
        raise InputError(f"{words} has no setting {listed(unknown)}; needed: {listed(known) if known else 'none'}")


def _value(text: str) -> Any:
    """A JSON value, a Python value, or the text itself."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _of_file(words: str, file: str, name: str, settings: Settings) -> NamedEnvironment:
    """A class or function of a file: what it makes is an environment, ours or of a library, or a NamedEnvironment."""
    module = import_file(file, "needed: FILE.py:CLASS")
    target = getattr(module, name, None)
    own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    if not callable(target):
        raise InputError(
            f"{shown_path(file)} has no class {shown(name)}; {did_you_mean(name, own)}needed: one of {listed(own)}"
        )

    def make() -> Any:
        return call_user_code(words, lambda: target(**settings))

    first = make()
    if isinstance(first, NamedEnvironment):
        return first
    for scheme in schemes().values():
        if (wrapped := call_user_code(words, partial(scheme.wrap, words, make, first))) is not None:
            return wrapped
    return of_class(words, target, make)


def of_class(name: str, target: Any, make: Callable[[], Environment]) -> NamedEnvironment:
    """Environments of a class or function of ours, which may have `tasks`, `eval_tasks`, `players` and so on."""
    given: dict[str, Any] = {
        part: getattr(target, part) for part in ("tasks", "eval_tasks", "trained_agents") if hasattr(target, part)
    }
    scripts = getattr(target, "players", {})
    players = {agent: one if hasattr(one, "reply") else ScriptedGenerator(one) for agent, one in scripts.items()}
    return NamedEnvironment(name, make, players=players, about=(target.__doc__ or "").partition("\n")[0], **given)
