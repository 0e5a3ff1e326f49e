"""The settings of a config: the fields of its dataclass and of its groups, by name, each a flag."""

import ast
import contextlib
import dataclasses
import functools
import inspect
import textwrap
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar, get_type_hints

T = TypeVar("T")

_annotations: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)


def flatten(config: object) -> dict[str, object]:
    """All fields by name, including those of the groups, in the order of declaration."""
    flat: dict[str, object] = {}
    for name, value in fields_of(config):
        inner = fields_of(value) if dataclasses.is_dataclass(value) else [(name, value)]
        for key, item in inner:
            assert key not in flat, f"two fields are called {key}, but flags need unique names"
            flat[key] = item
    return flat


def fields_of(config: object) -> list[tuple[str, object]]:
    """The names and values of a dataclass's own fields."""
    return [(field.name, getattr(config, field.name)) for field in dataclasses.fields(config)]  # type: ignore[arg-type]


def flag_types(config: object) -> dict[str, Any]:
    """The annotation of every flag. Asserts that names are unique and not reserved, and that groups nest once."""
    hints = dict(_annotations(type(config)))
    for _, value in fields_of(config):
        if dataclasses.is_dataclass(value):
            assert not any(dataclasses.is_dataclass(item) for _, item in fields_of(value)), "groups nest one level only"
            hints |= _annotations(type(value))
    hints = {name: hints[name] for name in flatten(config)}
    assert not {"help", "local_rank"} & hints.keys(), "help and local_rank are reserved"
    return hints


def flag_texts(config: object) -> dict[str, str]:
    """The text of each flag: the string below its field, on one line."""
    groups = [value for _, value in fields_of(config) if dataclasses.is_dataclass(value)]
    kinds: list[Any] = [type(one) for one in (config, *groups)]
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


def rebuild(config: T, values: dict[str, object]) -> T:
    """The config with the named fields replaced, its groups first; each dataclass is checked once, when complete."""
    replace: Callable[..., Any] = dataclasses.replace
    changed: dict[str, Any] = {}
    for name, value in fields_of(config):
        if not dataclasses.is_dataclass(value):
            changed |= {name: values[name]} if name in values else {}
        elif inner := {key: values[key] for key, _ in fields_of(value) if key in values}:
            changed[name] = replace(value, **inner)
    return replace(config, **changed) if changed else config
