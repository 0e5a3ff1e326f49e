"""JSON from files, row by row: a broken row has an error of its own, and the others are read."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lmgym.data.rejections import NESTED, NOT_JSON, NOT_UTF8, OUT_OF_RANGE, UNREADABLE, RowError
from lmgym.data.sources import SPLITS, choose_split
from lmgym.errors import listed, one_line, shown

MOST_NESTED = 100
TEXTS = {
    *("prompt", "instruction", "question", "query", "input", "input_text", "text", "chosen", "rejected"),
    *("output", "output_text", "response", "completion", "answer"),
}
"""columns that are text in a row: an object with one of them is a row, whatever lists it holds"""
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


def is_chat(value: Any) -> bool:
    """True for a list of messages, which is a row without an object around it."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and ({"role", "content"} <= first.keys() or {"from", "value"} <= first.keys())


def is_document(first: str, second: str, is_file_of_lines: bool) -> bool:
    """True if a file with these first lines (stripped, not blank, "" for none) is not one of JSON lines.

    `is_file_of_lines`: its name says so; then one line is an object, and a list of several lines must be unclosed.
    """
    if not first.startswith(("[", "{")):
        return False
    if not is_file_of_lines and (first.startswith("[") or not second):
        return True
    if not second:
        return first.startswith("[")
    # a damaged first line is followed by a whole one; the lines of a document are not objects
    return first in ("[", "{") or not (_is_closed(first) or (second.startswith("{") and _is_closed(second)))


def document_rows(
    text: str, split: str | None, is_file_of_lines: bool
) -> Iterator[tuple[int, str | dict[str, Any]]] | None:
    """(number, object or its text) of the rows of JSON that is not in lines; None if it is in lines after all.

    A list of rows; an object that holds one (`{"data": [...]}`), one for each split, or columns, as lists or as pandas
    writes them; else an object, or a list of messages, is a row, and several ones are rows at their lines. Raises
    ValueError for a file that is damaged or in none of these forms.
    """
    start = text.lstrip()
    if start.startswith("[") and not is_file_of_lines and not _holds_messages(start):
        return enumerate(list_items(text), 1)
    try:
        documents = _documents(text)
    except ValueError:
        if is_file_of_lines or _rows_in_lines(text):
            return None
        raise
    if not is_file_of_lines:
        return _rows_of(documents, split)
    try:
        rows = list(_rows_of(documents, split))
    except ValueError:
        if _rows_in_lines(text):
            return None
        raise
    good = sum(isinstance(row, dict) or _is_row(row) for _, row in rows)
    return None if good < len(rows) and good < _rows_in_lines(text) else iter(rows)


def _rows_of(documents: list[tuple[int, str]], split: str | None) -> Iterator[tuple[int, str | dict[str, Any]]]:
    if len(documents) > 1:
        return iter(documents)
    [(line, document)] = documents
    if document.startswith("{"):
        rows = _rows_within(document, split)
    else:
        rows = None if _holds_messages(document) else list_items(document)
    return iter([(line, document)]) if rows is None else enumerate(rows, 1)


def _rows_in_lines(text: str) -> int:
    return sum(map(_is_row, text.split("\n")))


def _documents(text: str) -> list[tuple[int, str]]:
    """(line, text) of the one list, or the rows, that a text holds one after the other."""
    found: list[tuple[int, str]] = []
    depth, start, end, line, counted = 0, 0, 0, 1, 0
    for token in TOKENS.finditer(text):
        mark = token.group()[0]
        if depth == 0:
            if mark not in "[{" or text[end : token.start()].strip():
                raise ValueError(f"{shown(text[end : token.end()].strip(), 40)} outside of objects")
            start = token.start()
        depth += (mark in "[{") - (mark in "]}")
        if depth == 0:
            end = token.end()
            line, counted = line + text.count("\n", counted, start), start
            found.append((line, text[start:end]))
    if depth or text[end:].strip() or not found:
        raise ValueError("it is not closed: the file is damaged or incomplete")
    if len(found) > 1 and any(document.startswith("[") and not _holds_messages(document) for _, document in found):
        raise ValueError("it holds several lists")
    return found


def _rows_within(text: str, split: str | None) -> Iterator[str | dict[str, Any]] | None:
    """The rows that an object holds; None if it is a row itself."""
    members = _members(text)
    if any((key in TEXTS and value.startswith('"')) or _holds_messages(value) for key, value in members.items()):
        return None
    lists = [key for key, value in members.items() if value.startswith("[")]
    rows = [key for key, value in members.items() if _holds_objects(value)]
    splits = {key: value for key, value in members.items() if key in (*SPLITS, split) and _may_be_split(value)}
    if splits and splits.keys() >= set(rows):
        chosen = None if split is None else choose_split(split, splits)
        if chosen is None:
            asked = f"; asked for {one_line(split)}" if split is not None else ": name a file of one"
            raise ValueError(f"its splits are {listed(splits)}{asked}")
        return list_items(chosen) if chosen.startswith("[") else _rows_within(chosen, None)
    if members and len(lists) == len(members) and (len(lists) > 1 or not rows):
        return _rows_of_columns(_value(text))
    if len(rows) == 1:
        return list_items(members[rows[0]])
    if members and all(value.startswith("{") for value in members.values()):
        return _rows_of_pandas(_value(text))
    return None


def _rows_of_columns(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    sizes = {key: len(column) for key, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"its lists differ in length: {listed(f'{key} has {n:,}' for key, n in sizes.items())}")
    return (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


def _rows_of_pandas(value: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]] | None:
    """Of `DataFrame.to_json`: `{"chosen": {"0": ..., "1": ...}}`, or `{"0": {"chosen": ...}}`."""
    if all(key.isdecimal() for key in value):
        return iter([dict(row) for row in value.values()])
    first, *others = value.values()
    if not first or not all(key.isdecimal() for key in first) or any(other.keys() != first.keys() for other in others):
        return None
    return ({column: cells[i] for column, cells in value.items()} for i in first)


def _members(text: str) -> dict[str, str]:
    """The texts of an object's values. Raises ValueError for what is no object, and for a key that occurs twice."""
    found: dict[str, str] = {}
    for item in list_items(text):
        try:
            key, end = _DECODER.raw_decode(item := item.strip())
        except (ValueError, RecursionError):
            key, end = None, 0
        rest = item[end:].lstrip()
        if not isinstance(key, str) or not rest.startswith(":") or key in found:
            raise ValueError(f"not JSON: {shown(item, 40)} in an object, or twice")
        found[key] = rest[1:].lstrip()
    return found


def _value(text: str) -> Any:
    try:
        return parse_json(text)
    except RowError as error:
        raise ValueError(error.found) from error


def _is_closed(text: str) -> bool:
    marks = [token.group()[0] for token in TOKENS.finditer(text)]
    return sum((mark in "[{") - (mark in "]}") for mark in marks) == 0


def _is_row(line: str) -> bool:
    try:
        value = parse_json(line) if line.lstrip().startswith(("{", "[")) else None
    except RowError:
        return False
    return isinstance(value, dict) or is_chat(value)


def _holds_objects(value: str) -> bool:
    return re.match(r"\[\s*\{", value) is not None


def _holds_messages(value: str) -> bool:
    try:
        return _holds_objects(value) and is_chat([parse_json(next(list_items(value)))])
    except RowError:
        return False


def _may_be_split(value: str) -> bool:
    if value.startswith("{"):
        members = _members(value)
        return bool(members) and all(column.startswith("[") for column in members.values())
    return _holds_objects(value) or re.fullmatch(r"\[\s*\]", value) is not None


def json_decoder(kind: Any) -> Callable[[Any], Any] | None:
    """The reader of values of a pyarrow type that holds JSON as text, as `datasets.Json` does; None for other types.

    The decoder raises RowError for what is no JSON.
    """
    import pyarrow

    if isinstance(kind, pyarrow.JsonType):
        return lambda value: None if value is None else parse_json(value)
    if pyarrow.types.is_struct(kind):
        decoders = {field.name: decode for field in kind if (decode := json_decoder(field.type))}
        if decoders:
            return lambda value: value and value | {name: decode(value[name]) for name, decode in decoders.items()}
    elif hasattr(kind, "value_type") and (decode := json_decoder(kind.value_type)):
        return lambda value: None if value is None else [decode(item) for item in value]
    return None


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
