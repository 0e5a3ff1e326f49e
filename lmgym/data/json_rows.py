"""JSON from files, row by row: a broken row has an error of its own, and the others are read."""

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
    """The value of a JSON text. Raises RowError for invalid JSON, and for a key that occurs twice in an object."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise RowError(field, f"more than {MOST_NESTED} levels of lists and objects", NESTED) from None
    except _DuplicateKey as error:
        raise RowError(field, f"the key {shown(error.args[0])} occurs twice in one object", UNREADABLE) from None
    except json.JSONDecodeError as error:
        raise RowError(field, f"not JSON: {one_line(error.msg)} at character {error.pos + 1:,}", NOT_JSON) from None
    except ValueError:  # Python's limit on digits
        raise RowError(field, "a number of more than 4,300 digits", OUT_OF_RANGE) from None


def refuse_unusable(values: dict[str, Any]) -> None:
    """Raises RowError for a field that is nested too deeply, and for text that UTF-8 cannot hold: lone surrogates."""
    for field, value in values.items():
        _refuse_surrogates(field, field)
        refuse_unusable_value(value, field)


def refuse_unusable_value(value: Any, field: str) -> None:
    """`refuse_unusable` of one value. A loop over levels: recursion would overflow on a deep value."""
    if isinstance(value, str):  # the usual case
        _refuse_surrogates(value, field)
        return
    level, depth = [value], 0
    while level:
        if depth > MOST_NESTED:
            raise RowError(field, f"more than {MOST_NESTED} levels of lists and objects", NESTED)
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _refuse_surrogates(item, field)
            elif isinstance(item, dict):
                below += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                below += item
        level, depth = below, depth + 1


def list_items(text: str) -> Iterator[str]:
    """The texts of the items of a JSON list. Raises ValueError for a list without an end, or text after its end.

    Only brackets and strings are parsed: an item that is not JSON does not prevent reading the others.
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
    """A key that occurs twice in an object."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises _DuplicateKey if a key occurs twice: it is unknown which value is meant."""
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
