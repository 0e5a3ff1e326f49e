"""Kinds of columns, and the conversion of a column to its kind: as a whole, or value by value if a value is bad."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lmgym.data.records import cell_fault
from lmgym.data.rejections import OUT_OF_RANGE, WRONG_TYPE, RowError
from lmgym.errors import shown

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Kind:
    """The values that a column may hold, apart from null: text, ids (integers or text), or finite numbers."""

    type: Literal["text", "id", "number"]
    needed: str
    """in words"""
    holds: Callable[[Floats], NDArray[np.bool_]] = np.isfinite
    """True for numbers that are in range"""

    def refuses(self, values: Floats) -> NDArray[np.bool_]:
        """True for values that are neither NaN, which is null, nor in range."""
        with np.errstate(invalid="ignore"):
            return ~np.isnan(values) & ~(np.isfinite(values) & self.holds(values))


TEXT = Kind("text", "text")
ID = Kind("id", "integers or text")
NUMBER = Kind("number", "finite numbers")


def convert_values(values: list[Any], kind: Kind, name: str) -> tuple[Any, dict[int, RowError]]:
    """(column of a kind, faults by row) from Python values; a value that its kind does not allow is null."""
    import pyarrow

    try:
        column = pyarrow.array(values)
    except (pyarrow.ArrowException, UnicodeError, OverflowError, TypeError, ValueError, RecursionError):
        return _convert_each(values, kind, name)
    return convert_column(column, kind, name)


def convert_column(column: Any, kind: Kind, name: str) -> tuple[Any, dict[int, RowError]]:
    """`convert_values` of a pyarrow column: as a whole if that works, otherwise value by value."""
    import pyarrow

    convert = {"text": _whole_texts, "id": _whole_ids, "number": _whole_numbers}[kind.type]
    try:
        whole = convert(column)
    except (pyarrow.ArrowException, UnicodeError, TypeError, ValueError):
        return _convert_each(_python_values(column, name), kind, name)
    return (whole, {}) if kind.type != "number" else _in_range(whole, column, kind, name)


def _in_range(values: Floats, column: Any, kind: Kind, name: str) -> tuple[Any, dict[int, RowError]]:
    import pyarrow

    refused = kind.refuses(values)
    bad = {}
    for row in np.flatnonzero(refused).tolist():
        bad[row] = RowError(name, f"{shown(column[row].as_py())}; needed: {kind.needed}", OUT_OF_RANGE)
    return pyarrow.array(np.where(refused, np.nan, values), from_pandas=True), bad


def _whole_texts(column: Any) -> Any:
    """Raises ArrowException or TypeError for a value that is not text, or not UTF-8."""
    import pyarrow.types

    if pyarrow.types.is_null(column.type):
        return column.cast("string")
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pyarrow.types.is_string(column.type) or pyarrow.types.is_large_string(column.type)):
        raise TypeError(column.type)
    large = pyarrow.types.is_large_string(column.type)
    return column.cast("large_binary" if large else "binary").cast(column.type)  # checks UTF-8


def _whole_ids(column: Any) -> Any:
    import pyarrow.types

    # floats: a null elsewhere in the column may have turned integers into floats
    if pyarrow.types.is_floating(column.type) or pyarrow.types.is_integer(column.type):
        return column.cast("int64")
    return _whole_texts(column)


def _whole_numbers(column: Any) -> Floats:
    import pyarrow.compute
    import pyarrow.types

    if pyarrow.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if pyarrow.types.is_boolean(column.type):
        column = pyarrow.compute.cast(column, "int8")
    return pyarrow.compute.cast(column, "float64", safe=False).to_numpy(zero_copy_only=False).astype(np.float64)


def _python_values(column: Any, name: str) -> Iterator[Any]:
    """Python values of a column, with a RowError for each that cannot be read."""
    for value in column:
        try:
            yield value.as_py()
        except Exception as error:
            yield cell_fault(name, error)


def _convert_each(values: Iterable[Any], kind: Kind, name: str) -> tuple[Any, dict[int, RowError]]:
    import pyarrow

    kept: list[Any] = []
    bad: dict[int, RowError] = {}
    read = {"text": _text, "id": _id, "number": lambda value: _number(value, kind)}[kind.type]
    for row, value in enumerate(values):
        try:
            if isinstance(value, RowError):
                raise value
            kept.append(None if value is None or value != value else read(value))
        except (RowError, ValueError, TypeError, OverflowError) as error:
            kept.append(None)
            bad[row] = _fault(error, value, kind, name)
    if kind.type == "number":
        return pyarrow.array(kept, "float64"), bad
    if kind.type == "id" and not all(isinstance(value, int | None) for value in kept):
        return pyarrow.array([None if value is None else str(value) for value in kept], "string"), bad
    return pyarrow.array(kept, "int64" if kind.type == "id" else "string"), bad


def _fault(error: Exception, value: Any, kind: Kind, name: str) -> RowError:
    if isinstance(error, RowError):
        return error
    if isinstance(error, UnicodeError):
        return cell_fault(name, error)
    is_number = kind.type == "number" and isinstance(value, int | float)
    return RowError(name, f"{shown(value)}; needed: {kind.needed}", OUT_OF_RANGE if is_number else WRONG_TYPE)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    value.encode()
    return value


def _id(value: Any) -> int | str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str):
        return _text(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError(value)
    return value


def _number(value: Any, kind: Kind) -> float | None:
    if isinstance(value, str) and "_" in value:  # 1_000 is Python's notation
        raise ValueError(value)
    number = float(value)
    if kind.refuses(np.array([number])).any():
        raise ValueError(value)
    return None if number != number else number
