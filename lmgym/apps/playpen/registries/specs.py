"""Specs of models and games: objects of JSON that are read from registries, selected by a part of them, and unified."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lmgym.errors import InputError, did_you_mean, listed, nearest, one_line, regular, shown, shown_path
from lmgym.masking import masked
from lmgym.origin import PACKAGED, Origin
from lmgym.runs.record import redact

SOURCE_FIELD = "lookup_source"
MISSPELT = 0.75  # similarity from which an unknown key is taken for a misspelt one, and not for an extra one


@dataclass(frozen=True)
class Spec:
    """An entry of a registry: its fields, and the file it is from, or PACKAGED."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    source: Origin = PACKAGED
    unnamed: str = ""
    """the registry's file, of a game whose code the user has not named: it can be listed, and is not run"""

    def get(self, name: str, default: Any = None) -> Any:
        """A field, or the default."""
        return self.fields.get(name, default)

    @property
    def name(self) -> str:
        """The name of the model or game; empty for a selector without one."""
        return str(self.fields.get("model_name", self.fields.get("game_name", "")))

    @property
    def game_name(self) -> str:
        """The name of the game, as trainers written for clemcore ask for it."""
        return self.name

    @property
    def model_name(self) -> str:
        """The name of the model, likewise."""
        return self.name

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def to_dict(self) -> dict[str, Any]:
        """The fields without secrets."""
        return self.public

    def with_instances(self, name: str | None) -> "Spec":
        """The game with another file of instances. Raises InputError for one of our own, which has no file."""
        if name and self.source == PACKAGED:
            raise InputError(
                f"instances {shown_path(name)}: {self.name} is one of our own games, which have no files; leave out"
            )
        return replace(self, fields={**self.fields, "instances": name}) if name else self

    def __str__(self) -> str:
        """The fields and the source as one line of JSON, as Playpen prints them, without secrets."""
        fields = {**self.public, SOURCE_FIELD: str(self.source)}
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @property
    def public(self) -> dict[str, Any]:
        """The fields without secrets: keys, and passwords in addresses."""
        return json.loads(masked(json.dumps(redact(self.fields))))


def unify(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of both, objects merged at every depth; None if a field has two different values."""
    unified = {**one, **{name: value for name, value in other.items() if name not in one}}
    for name in one.keys() & other.keys():
        if isinstance(one[name], Mapping) and isinstance(other[name], Mapping):
            if (inner := unify(one[name], other[name])) is None:
                return None
            unified[name] = inner
        elif one[name] != other[name]:
            return None
    return unified


def read_selector(text: str, name_field: str) -> dict[str, Any]:
    """A name, or a part of a spec as JSON, in which quotes may be single. Raises InputError for broken JSON."""
    if not text.strip().startswith("{"):
        return {name_field: text}
    for candidate in (text, text.replace("'", '"')):
        try:
            found = json.loads(candidate)
        except ValueError as error:
            fault = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        else:
            if isinstance(found, dict):
                return found
    raise InputError(f"selector {shown(text)} is not JSON ({fault}); needed: a name, or such as {{'{name_field}':'x'}}")


def read_entries(path: Path) -> tuple[list[dict[str, Any]], str]:
    """(the objects of a registry's file, its text). Raises InputError, with the line, for a file that is none."""
    try:
        text = regular(path).read_text(encoding="utf-8")
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{shown_path(path)}, line {error.lineno}, is not JSON: {error.msg}; needed: a list of objects"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"{shown_path(path)} cannot be read: {one_line(str(error))}; needed: a JSON list of objects"
        ) from error
    entries = content if isinstance(content, list) else [content]
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            raise InputError(f"{shown_path(path)}: entry {number} is {shown(entry)}; needed: an object")
    return entries, text


def refuse_misspelt(path: Path, text: str, entry: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises InputError for a key that is close to a known one and not known; other unknown keys are extra ones."""
    for key in entry:
        near = nearest(key, known, MISSPELT)
        if key not in known and near:
            found = re.search(rf"{re.escape(json.dumps(key))}\s*:", text)
            line = text.count("\n", 0, found.start()) + 1 if found else 1
            raise InputError(f"{shown_path(path)}, line {line}: there is no key {shown(key)}; did you mean {near}?")


def one_of(matches: Sequence[Spec], what: str, text: str, names: Collection[str], elsewhere: str = "") -> Spec:
    """The match of the first source that has one. Raises InputError for none, and for several in that source.

    `elsewhere` says where others would be.
    """
    if not matches:
        hint = did_you_mean(text, names)
        raise InputError(f"no {what} matches {shown(text)}; {hint}needed: one of {listed(names, 30)}{elsewhere}")
    first = [spec for spec in matches if spec.source == matches[0].source]
    if len(first) > 1:
        source = shown_path(first[0].source)
        raise InputError(
            f"{len(first)} entries of {source} match {shown(text)}: {listed(spec.name for spec in first)}; needed: a "
            "selector of one, such as {'" + what + "_name':'" + first[0].name + "'}, or entries with different names"
        )
    return first[0]
