"""JSON out of files: one row at a time, so that a broken row says what is wrong with it and the others are read."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from lmgym.data.rejections import NESTED, NOT_JSON, NOT_UTF8, OUT_OF_RANGE, UNREADABLE, RowError
from lmgym.errors import one_line, shown

MOST_NESTED = 100
TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|["\[\]{},]', re.DOTALL)


def parse_json(text: str, field: str = "(row)") -> Any:
    """The value of a JSON text. Raises RowError for what is none, and for a key that occurs twice in an object."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise RowError(field, f"more than {MOST_NESTED} levels of lists and objects", NESTED) from None
    except _DuplicateKey as error:
        raise RowError(field, f"the key {shown(error.args[0])} occurs twice in one object", UNREADABLE) from None
    except json.JSONDecodeError as error:
        raise RowError(field, f"not JSON: {one_line(error.msg)} at character {error.pos + 1:,}", NOT_JSON) from None
    except ValueError:  # Python's limit of digits
        raise RowError(field, "a number of more than 4,300 digits", OUT_OF_RANGE) from None


def refuse_unusable(values: dict[str, Any]) -> None:
    """Raises RowError for a field that is nested too deeply, and for text that UTF-8 cannot hold: lone surrogates."""
    for field, value in values.items():
        _refuse_surrogates(field, field)
        refuse_unusable_value(value, field)


def refuse_unusable_value(value: Any, field: str) -> None:
    """The same of one value. A loop over levels, as recursion is what a deep value exhausts."""
    if isinstance(value, str):  # most values are
        _refuse_surrogates(value, field)
        return
    level, depth = [value], 0
    while level:
        if depth > MOST_NESTED:
            raise RowError(field, f"more than {MOST_NESTED} levels of lists and objects", NESTED)
        below: list[Any] = []
        for one in level:
            if isinstance(one, str):
                _refuse_surrogates(one, field)
            elif isinstance(one, dict):
                below += one.keys()
                below += one.values()
            elif isinstance(one, list | tuple):
                below += one
        level, depth = below, depth + 1


def list_items(text: str) -> Iterator[str]:
    """The texts of the items of a JSON list. Raises ValueError where the list ends too early or goes on after its end.

    Found by brackets and strings alone: an item that is no JSON does not keep the others from being read.
    """
    depth, start = 0, 0
    for token in TOKENS.finditer(text):
        mark = token.group()[0]
        if mark in "[{":
            depth += 1
            if depth == 1:
                start = token.end()
        elif mark in "]}":
            depth -= 1
        if (mark == "," and depth == 1) or depth == 0:
            item = text[start : token.start()]
            if item.strip() or mark == ",":
                yield item
            start = token.end()
        if depth == 0:
            if text[start:].strip():
                raise ValueError(f"{shown(text[start:].strip(), 40)} after the end of its list")
            return
    raise ValueError("its list is not closed: the file is damaged or incomplete")


class _DuplicateKey(Exception):
    """The key."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises where a key occurs twice: which of the values is meant is not known."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _DuplicateKey(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _refuse_surrogates(text: str, field: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = shown(text[max(0, error.start - 10) : error.start + 10])
        raise RowError(field, f"text that is not UTF-8, at character {error.start + 1:,}: {found}", NOT_UTF8) from None
