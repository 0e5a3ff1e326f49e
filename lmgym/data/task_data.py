"""Training and evaluation examples of a task, with every row of the dataset accounted for."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from lmgym.config import ColumnConfig, RowsConfig
from lmgym.data.example_rows import REALIGNED, SHORTENED, TRUNCATED, ExampleRows, encode, write_batches
from lmgym.data.mixing import DataSet, Part, drawn_by_set, mix, read_sets, read_weights, set_names, sets_of_rows
from lmgym.data.rejections import Rejection, Tally, tally
from lmgym.data.rows import fingerprint
from lmgym.data.sampling import ordered_sample
from lmgym.data.splitting import overlap_notes, split_column, split_rows
from lmgym.data.thoughts import opening
from lmgym.data.tokenized_cache import key_of, made_once
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError

E = TypeVar("E")
TOGETHER = 1024  # rows in one call of the tokenizer
ENOUGH = 0.95  # of the rows, that a longer --max_length is to keep


@dataclass(frozen=True)
class TaskData:
    """Examples made from a dataset."""

    noun: str
    """the examples in words: pairs, rows, groups"""
    train: Sequence[Any]
    evaluation: Sequence[Any]
    lengths: np.ndarray
    """tokens of each training example"""
    replies: int
    """most replies in an example"""
    truncated: int
    """examples without their oldest turns, or shortened"""
    shortened: int
    """examples whose last turn before the reply was cut: see lmgym/data/truncation.py"""
    rejections: Sequence[Rejection]
    fingerprint: str
    left_out: dict[str, int] = field(default_factory=dict)
    """usable rows beyond a limit"""
    rows: int = 0
    """read for training and evaluation"""
    parts: Sequence[Part] = ()
    """of several data sets, what is drawn of each"""
    notes: Sequence[str] = ()
    """lines on what was read, and what to know of it"""

    @property
    def tally(self) -> Tally:
        """The rejections by reason."""
        return tally(self.rejections, self.rows)

    @property
    def counts(self) -> dict[str, Any]:
        """Counts that are printed and recorded, so that no row disappears silently."""
        return {
            f"train_{self.noun}": len(self.train),
            f"eval_{self.noun}": len(self.evaluation),
            f"truncated_{self.noun}": self.truncated,
            f"shortened_{self.noun}": self.shortened,
            **self.tally.counts,
            **self.left_out,
            **drawn_by_set(self.parts),
        }


def check_sides(data: TaskData, rows: int, ranks: int) -> TaskData:
    """The data unchanged. Raises InputError if a side is empty, or there are fewer training examples than ranks."""
    noun = data.noun.removesuffix("s")
    for name, side in (("training", data.train), ("evaluation", data.evaluation)):
        if not len(side):
            kept = len(data.train) + len(data.evaluation)
            needed = "needed: usable rows, or a longer --max_length" if not kept else "needed: another --eval_size"
            more = " or more rows" if kept == 1 else ""
            raise InputError(f"{data.tally.in_front}no {noun} of {rows:,} rows is left for {name}; {needed}{more}")
    if len(data.train) < ranks:
        raise InputError(
            f"{len(data.train)} training {noun}(s) for {ranks} ranks leaves ranks without data; use fewer ranks"
        )
    return data


class Validate(Protocol):
    """Reads the rows of all data sets, and adds a line on each to the notes."""

    def __call__(
        self, *sets: DataSet, columns: ColumnConfig, notes: list[str] | None
    ) -> tuple[list[Any], list[Rejection]]:
        """(rows, rejections)."""
        ...


Tokenize = Callable[[Sequence[Any], Any, int, dict[int, int] | None], tuple[list[Any], list[Rejection]]]
"""of (rows, tokenizer, max_length, numbers): (examples, rejections); `numbers` of distinct prompts are added to"""


@dataclass(frozen=True)
class Preparation(Generic[E]):
    """The steps by which a task makes examples of rows."""

    noun: str
    """the examples in words: pairs, rows, groups"""
    usable: str
    """a valid row in words, for an error message"""
    validate: Validate
    tokenize: Tokenize
    kind: type[E]
    """of the examples"""
    variant: str = ""
    """tells tasks of one stage apart, whose examples of the same rows differ"""
    finish: Callable[[ExampleRows[E]], Iterator[E]] | None = None
    """makes the final examples of all that were tokenised"""


def prepare(settings: RowsConfig, columns: ColumnConfig, seed: int, tokenizer, how: Preparation[Any]) -> TaskData:
    """Rows read, validated, split by prompt and tokenised, or found again in the cache. Collective."""

    def make() -> "_Prepared":
        return _Prepared(settings, columns, seed, tokenizer, how)

    sources = [(name, settings.dataset_split) for name in set_names(settings.dataset)]
    if settings.eval_dataset:
        sources += [(name, "test") for name in set_names(settings.eval_dataset)]
    used = asdict(settings)
    given = {**used, **asdict(columns), "seed": seed, "noun": how.noun, "variant": how.variant}
    key = key_of(sources, given, tokenizer, how.kind.__module__.partition(".")[0])
    data = made_once(key, lambda folder: make().write(folder), lambda folder: _read(folder, how), lambda: make().data())
    return check_sides(data, data.rows, world_size())


FILES = ("train.arrow", "evaluation.arrow")


class _Prepared:
    """Rows that are read and split, and their examples, batch after batch."""

    def __init__(
        self, settings: RowsConfig, columns: ColumnConfig, seed: int, tokenizer, how: Preparation[Any]
    ) -> None:
        self.settings, self.tokenizer, self.how = settings, tokenizer, how
        self.notes: list[str] = []
        weights = read_weights(settings.dataset_weights, set_names(settings.dataset), "dataset_weights")
        column = split_column(settings.split_by)
        sets = read_sets(settings.dataset, settings.dataset_split, settings.max_rows, column)
        found, rejections = self._validated(sets, columns)
        kept, self.parts = mix(sets_of_rows(found, rejections, sets, how.usable), [*sets], weights, seed)
        rows = [found[i] for i in kept]
        unmixed, self.read = len(found) - len(rows), sum(map(len, sets.values()))
        del found
        given, others = None, read_sets(settings.eval_dataset, "test", None, column) if settings.eval_dataset else {}
        if others:
            given, faults = self._validated(others, columns)
            self.read += sum(map(len, others.values()))
            rejections = [*rejections, *faults]
        of_all = *sets.values(), *others.values()
        sides = split_rows(rows, given, settings.split_by, of_all, settings.eval_size, seed, how.noun, "eval_dataset")
        rows, held_out, self.units = sides.train, sides.held_out, sides.units
        rejections = [*rejections, *sides.rejections]
        chosen = [rows[i] for i in sample_rows(len(rows), settings.train_size, seed)]
        unused = len(rows) - len(chosen) + unmixed
        self.left_out = {"unused_rows": unused} if unused else {}
        self.rejections, self.fingerprint = list(rejections), fingerprint(chosen, held_out)
        self.sides = chosen, held_out
        self.notes += [*sides.notes, *overlap_notes(chosen, held_out, sides.split_by, how.noun)]
        self.notes += special_token_notes(tokenizer, (*chosen, *held_out))

    def _validated(self, sets: Mapping[str, DataSet], columns: ColumnConfig) -> tuple[list[Any], list[Rejection]]:
        """(rows, rejections) of data sets."""
        found, rejections = self.how.validate(*sets.values(), columns=columns, notes=self.notes)
        opened = opening(self.tokenizer) if self.settings.thoughts == "empty" else None
        return ([row.map_replies(opened.filled) for row in found] if opened else found), rejections

    def batches(self, rows: list[Any]) -> Iterator[pa.RecordBatch]:
        """The examples of rows, which are given up as they are tokenised."""
        numbers = dict(self.units)
        for first in range(0, len(rows), TOGETHER):
            some = rows[first : first + TOGETHER]
            rows[first : first + TOGETHER] = [None] * len(some)
            examples, faults = self.how.tokenize(some, self.tokenizer, self.settings.max_length, numbers)
            self.rejections += faults
            yield encode(examples, self.how.kind)

    def finished(self, rows: list[Any]) -> Iterator[pa.RecordBatch]:
        """`batches` of the final examples."""
        if self.how.finish is None:
            yield from self.batches(rows)
            return
        examples = self.how.finish(ExampleRows.of(self.batches(rows), self.how.kind))
        while some := [example for _, example in zip(range(TOGETHER), examples, strict=False)]:
            yield encode(some, self.how.kind)

    def data(self) -> TaskData:
        """The examples in memory."""
        train, evaluation = (ExampleRows.of(self.finished(rows), self.how.kind) for rows in self.sides)
        return _task_data(self.how.noun, train, evaluation, self.facts(train, evaluation))

    def write(self, folder: Path) -> None:
        """Write the examples and what is known of them. Raises OSError."""
        for name, rows in zip(FILES, self.sides, strict=True):
            write_batches(folder / name, self.finished(rows), self.how.kind)
        train, evaluation = (ExampleRows.open(folder / name, self.how.kind) for name in FILES)
        text = json.dumps(self.facts(train, evaluation), ensure_ascii=False, default=asdict)
        (folder / "facts.json").write_text(text, encoding="utf-8", errors="surrogatepass")

    def facts(self, train: ExampleRows[Any], evaluation: ExampleRows[Any]) -> dict[str, Any]:
        """Facts about the examples beside themselves, as fields of TaskData."""
        notes = [*self.notes, *length_notes(self.rejections, len(train) + len(evaluation), self.settings.max_length)]
        if realigned := train.count(REALIGNED) + evaluation.count(REALIGNED):
            notes.append(
                f"{realigned:,} {self.how.noun}: a token lies across the border of prompt and reply, so the reply is "
                "tokenised anew behind the prompt, whose ids are those that generation is given"
            )
        return {
            "rejections": self.rejections,
            "fingerprint": self.fingerprint,
            "left_out": self.left_out,
            "rows": self.read,
            "parts": self.parts,
            "notes": notes,
        }


def _task_data(noun: str, train: ExampleRows[Any], evaluation: ExampleRows[Any], facts: Mapping[str, Any]) -> TaskData:
    return TaskData(
        noun=noun,
        train=train,
        evaluation=evaluation,
        lengths=train.tokens,
        replies=train.most_replies,
        truncated=train.count(TRUNCATED) + evaluation.count(TRUNCATED),
        shortened=train.count(SHORTENED) + evaluation.count(SHORTENED),
        **facts,
    )


def _read(folder: Path, how: Preparation[Any]) -> TaskData:
    """Reads what `_Prepared.write` wrote. Raises OSError, ValueError or KeyError for a folder that cannot be read."""
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8", errors="surrogatepass"))
    facts["rejections"] = [Rejection(**one) for one in facts["rejections"]]
    facts["parts"] = [Part(**one) for one in facts["parts"]]
    train, evaluation = (ExampleRows.open(folder / name, how.kind) for name in FILES)
    return _task_data(how.noun, train, evaluation, facts)


def length_notes(rejections: Sequence[Rejection], kept: int, max_length: int) -> list[str]:
    """A line if rows are too long, with the `--max_length` that would keep ENOUGH of them."""
    needed = np.sort([one.needed for one in rejections if one.needed])
    total = kept + len(needed)
    if not len(needed):
        return []
    line = f"{len(needed):,} of {total:,} rows are too long for --max_length {max_length}"
    missing = math.ceil(ENOUGH * total) - kept
    if missing < 1:
        return [line]
    longer = 64 * math.ceil(needed[min(missing, len(needed)) - 1] / 64)
    share = (kept + int(np.searchsorted(needed, longer, side="right"))) / total
    return [f"warning: {line}; --max_length {longer} would keep {share:.0%} of them"]


def special_token_notes(tokenizer, rows: Sequence[Any]) -> list[str]:
    """A line if texts of rows hold special tokens, which the model reads as such."""
    names = sorted({name for name in tokenizer.all_special_tokens if len(name) > 1}, key=len, reverse=True)
    if not names:
        return []
    pattern = re.compile("|".join(map(re.escape, names)))
    found, first = 0, ""
    for row in rows:
        texts = (*(turn.text for turn in row.conversation.turns), *_texts(row.answers))
        if match := next(filter(None, map(pattern.search, texts)), None):
            found, first = found + 1, first or match.group()
    if not found:
        return []
    return [f"{found:,} rows hold special tokens in their texts, such as {first}: the model reads them as such"]


def _texts(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from _texts(value)


def sample_rows(rows: int, size: int | None, seed: int) -> np.ndarray:
    """Indices of all rows, or an increasing random sample of `size`. Raises InputError for a size below 1."""
    if size is not None and size < 1:
        raise InputError(f"--train_size {size} leaves nothing to train on; needed: 1 or more, or None for all")
    return np.arange(rows) if size is None or rows <= size else ordered_sample(rows, size, seed)
