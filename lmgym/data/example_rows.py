"""Tokenised examples as an Arrow table: flat arrays of token ids, memory-mapped where they come from a file.

An example is a frozen dataclass whose fields are numbers, texts, tuples of numbers, `Replies` and `Conversation`s. It
is made anew each time it is asked for, so that a million of them need no Python objects.
"""

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmgym.text import Conversation, Replies, Turn

E = TypeVar("E")
TOKENS, REPLIES, TRUNCATED, SHORTENED, REALIGNED = "(tokens)", "(replies)", "(truncated)", "(shortened)", "(realigned)"
"""columns that describe the field `replies` of an example"""
_REPLIES = pa.struct(
    [
        ("prefix", pa.list_(pa.int32())),
        ("suffixes", pa.list_(pa.list_(pa.int32()))),
        ("dropped_turns", pa.int32()),
        ("shortened", pa.int32()),
        ("ends", pa.list_(pa.int32())),
        ("realigned", pa.bool_()),
    ]
)


@dataclasses.dataclass(frozen=True)
class _Codec:
    """The Arrow type of a field, and its conversion."""

    type: Any
    """of Arrow"""
    encode: Callable[[Any], Any] = lambda value: value
    decode: Callable[[Any], Any] = lambda value: value


def _encode_replies(replies: Replies) -> dict[str, Any]:
    return {name: getattr(replies, name) for name in Replies.__slots__}


def _decode_replies(row: dict[str, Any]) -> Replies:
    return Replies(**row | {"ends": tuple(row["ends"])})


def _encode_conversation(chat: Conversation) -> str:
    turns = [[turn.speaker, turn.text, turn.extra, turn.learned] for turn in chat.turns]
    return json.dumps([turns, chat.persona, chat.tools], ensure_ascii=False)


def _decode_conversation(text: str) -> Conversation:
    turns, persona, tools = json.loads(text)
    return Conversation(tuple(Turn(*turn) for turn in turns), persona, tools)


_CODECS: dict[Any, _Codec] = {
    int: _Codec(pa.int64()),
    float: _Codec(pa.float64()),
    bool: _Codec(pa.bool_()),
    str: _Codec(pa.string()),
    Replies: _Codec(_REPLIES, _encode_replies, _decode_replies),
    Conversation: _Codec(pa.string(), _encode_conversation, _decode_conversation),
    tuple[int, ...]: _Codec(pa.list_(pa.int64()), list, tuple),
    tuple[int, int]: _Codec(pa.list_(pa.int64()), list, tuple),
    tuple[float, ...]: _Codec(pa.list_(pa.float64()), list, tuple),
    tuple[tuple[int, int], ...]: _Codec(pa.list_(pa.list_(pa.int64())), decode=lambda rows: tuple(map(tuple, rows))),
    list[float] | None: _Codec(pa.list_(pa.float64())),
}


@cache
def _codecs(kind: Hashable) -> dict[str, _Codec]:
    """The codec of each field of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: _CODECS[hints[field.name]] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]


def encode(examples: Sequence[Any], kind: type) -> pa.RecordBatch:
    """Examples of one dataclass as columns, with those that describe their replies."""
    columns = {
        name: pa.array([codec.encode(getattr(example, name)) for example in examples], codec.type)
        for name, codec in _codecs(kind).items()
    }
    rows = [example.replies for example in examples]
    columns |= {
        TOKENS: pa.array([row.tokens for row in rows], pa.int32()),
        REPLIES: pa.array([len(row.suffixes) for row in rows], pa.int32()),
        TRUNCATED: pa.array([row.truncated for row in rows], pa.bool_()),
        SHORTENED: pa.array([row.shortened > 0 for row in rows], pa.bool_()),
        REALIGNED: pa.array([row.realigned for row in rows], pa.bool_()),
    }
    return pa.RecordBatch.from_pydict(columns)


class ExampleRows(Sequence[E], Generic[E]):
    """Examples of a table, in order."""

    def __init__(self, table: pa.Table, kind: type[E]) -> None:
        self.table, self.kind = table, kind

    @classmethod
    def of(cls, batches: Iterable[pa.RecordBatch], kind: type[E]) -> "ExampleRows[E]":
        """In memory."""
        return cls(pa.Table.from_batches([encode([], kind), *batches]), kind)

    @classmethod
    def open(cls, path: Path, kind: type[E]) -> "ExampleRows[E]":
        """Memory-mapped. Raises OSError or pyarrow.ArrowException for a file that cannot be read."""
        return cls(pa.ipc.open_file(pa.memory_map(str(path))).read_all(), kind)

    def __len__(self) -> int:
        return self.table.num_rows

    @overload
    def __getitem__(self, place: int) -> E: ...
    @overload
    def __getitem__(self, place: slice) -> list[E]: ...
    def __getitem__(self, place: int | slice) -> E | list[E]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        codecs = _codecs(self.kind)  # type: ignore[arg-type]
        number = int(place) % len(self)
        return self.kind(**{name: codec.decode(self.table[name][number].as_py()) for name, codec in codecs.items()})

    def __iter__(self) -> Iterator[E]:
        codecs = _codecs(self.kind)  # type: ignore[arg-type]
        for batch in self.table.to_batches(max_chunksize=256):
            for row in batch.select(list(codecs)).to_pylist():
                yield self.kind(**{name: codec.decode(row[name]) for name, codec in codecs.items()})

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, [rows]."""
        return self.table[name].to_numpy()

    @property
    def reply_lengths(self) -> np.ndarray:
        """[replies of all rows]: tokens of each, in order."""
        suffixes = pc.list_flatten(pc.struct_field(self.table["replies"], "suffixes"))
        return pc.list_value_length(suffixes).to_numpy().astype(np.int64)

    @cached_property
    def tokens(self) -> np.ndarray:
        """[rows]: tokens of a forward."""
        return self.numbers(TOKENS).astype(np.int64)

    @property
    def most_replies(self) -> int:
        """Most replies in an example; 0 if there are none."""
        return pc.max(self.table[REPLIES]).as_py() or 0

    def count(self, name: str) -> int:
        """Number of rows where a column of booleans is true."""
        return pc.sum(self.table[name]).as_py() or 0


def write_batches(path: Path, batches: Iterable[pa.RecordBatch], kind: type) -> None:
    """Write a table batch by batch, so that it is never whole in memory. Raises OSError."""
    empty = encode([], kind)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, empty.schema) as writer:
        writer.write_batch(empty)
        for batch in batches:
            writer.write_batch(batch)
