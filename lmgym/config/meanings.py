"""Meanings of the settings that describe a run's rows, so that a command of another stage can say the same."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Means:
    """The meaning of a setting that has another name in another stage: `Annotated[str, Means("rows")]`."""

    what: str


@dataclass(frozen=True)
class First:
    """The mark of a setting that people use first, which `--help` shows: `Annotated[str, First()]`. The others are in
    `--help all`."""


class SameInEveryStage:
    """The base of a group each of whose settings means the same in every stage that has it."""


def meanings(config: object) -> dict[str, str]:
    """The names of the settings that say what the rows are, by their meaning, of a config and its groups."""
    found: dict[str, str] = {}
    for group in [config, *(value for value in vars(config).values() if is_dataclass(value))]:
        hints: dict[str, Any] = get_type_hints(type(group), include_extras=True)
        names = [field.name for field in fields(group)]  # type: ignore[arg-type]
        found |= {name: name for name in names if isinstance(group, SameInEveryStage)}
        extras = {name: getattr(hints[name], "__metadata__", ()) for name in names}
        found |= {one.what: name for name, extra in extras.items() for one in extra if isinstance(one, Means)}
    return found
