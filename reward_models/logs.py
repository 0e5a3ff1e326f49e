"""Logs of users by the million: columns validated, labelled, limited and split by user, tokenised into flat arrays.

No Python object per row outlives the tokenisation of its block, and no loop is over users.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from lmgym.config import RowsConfig, TextForm
from lmgym.data.column_kinds import ID, TEXT
from lmgym.data.columns import Columns, read_columns, require_columns
from lmgym.data.mixing import Part, mix, read_weights, set_names
from lmgym.data.rejections import NO_PROMPT, NO_REPLY, NO_VALUE, Rejection, tally
from lmgym.data.rows import read_conversation
from lmgym.data.sampling import limit_per_group, split_by_group
from lmgym.data.splitting import fitting_eval_size
from lmgym.data.task_data import sample_rows
from lmgym.data.text_forms import WORDS, Form, FormCounts, read_as
from lmgym.data.truncation import rejection_of, tokenize_replies
from lmgym.errors import InputError, listed, one_line
from lmgym.text import Conversation, Replies, reply_text
from reward_models.config import RewardModelConfig
from reward_models.metrics.labels import MISSING, Label
from reward_models.objectives import LabelledExample

ALIASES = {"remaining_user_messages": "n_user_messages_remaining"}
BLOCK = 10_000
FORM_ROWS = 20_000  # of which the form of the texts is decided
T = TypeVar("T")


class LazyRows(Sequence[T]):
    """A sequence of examples that are made from arrays on access; a slice is a list."""

    @abstractmethod
    def row(self, index: int) -> T:
        """The example at an index, which may count from the end."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self.row(i) for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.row(index)


class TokenRows(LazyRows[Replies]):
    """Rows of one reply as one flat array of token ids: 4 bytes a token."""

    def __init__(self, ids: np.ndarray, lengths: np.ndarray, dropped_turns: np.ndarray, shortened: np.ndarray) -> None:
        self.ids, self.lengths = ids, lengths
        self.dropped_turns, self.shortened = dropped_turns, shortened
        self.ends = np.cumsum(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def truncated(self) -> int:
        """Rows of which anything was left out."""
        return int(((self.dropped_turns > 0) | (self.shortened > 0)).sum())

    @property
    def shortened_rows(self) -> int:
        """Rows of which the last turn was cut."""
        return int((self.shortened > 0).sum())

    def row(self, index: int) -> Replies:
        """The ids of a row: all but the last as prefix."""
        ids = self.ids[self.ends[index] - self.lengths[index] : self.ends[index]].tolist()
        return Replies(ids[:-1], [ids[-1:]], int(self.dropped_turns[index]), int(self.shortened[index]))


@dataclass(frozen=True)
class LogRows(LazyRows[LabelledExample]):
    """Tokenised rows of logs with their labels and origins."""

    tokens: TokenRows
    labels: np.ndarray
    users: np.ndarray
    prompts: np.ndarray
    """equal where the texts before the reply are"""
    row_ids: np.ndarray | None
    files: tuple[str, ...]
    file: np.ndarray
    line: np.ndarray
    utility: np.ndarray | None = None
    """hidden from the app, known to a simulated world; NaN where unknown"""

    def __len__(self) -> int:
        return len(self.tokens)

    def row(self, index: int) -> LabelledExample:
        """The example of a row."""
        origin = f"{Path(self.files[self.file[index]]).name}:{self.line[index]}"
        return LabelledExample(self.tokens[index], self.labels[index], origin)


@dataclass(frozen=True)
class Log:
    """A dataset's columns with labels, users and the indices of its usable rows."""

    columns: Columns
    labels: np.ndarray
    users: np.ndarray
    usable: np.ndarray
    rejections: list[Rejection]
    read: int
    """number of rows of the dataset, usable or not"""
    parts: Sequence[Part] = ()
    """of several data sets, what is drawn of each"""
    form: Form = "text"
    """of `input_text`"""

    @property
    def reading(self) -> str:
        """A line: what the columns are taken for."""
        used = {name: name for name in self.columns.table.column_names}
        used["input_text"] = f"input_text ({WORDS[self.form]})"
        unread = [name for name in self.columns.names if name not in used]
        where = one_line(Path(self.columns.files[0]).name)
        line = f"{where}: {self.read:,} rows; read: {', '.join(used.values())}"
        return f"{line}; not read: {listed(unread)}" if unread else line


def read_log(
    source: str, split: str, label: Label, max_rows: int | None = None, prompt_format: TextForm = "auto"
) -> Log:
    """Labelled rows. Raises InputError for an empty dataset, missing columns, and where no row is usable.

    A row without text, user or label, or with a value that its column cannot hold, is rejected.
    """
    asked = {name: (name, ALIASES[name]) if name in ALIASES else (name,) for name in label.columns}
    kinds = {"row_id": ID, "user_id": ID, "input_text": TEXT, "output_text": TEXT}
    kinds |= {name: label.kinds[first] for first, names in asked.items() for name in names}
    columns = read_columns(source, kinds, split, max_rows)
    rows = len(columns.line)
    if not rows and not columns.rejections:
        raise InputError(f"{one_line(columns.files[0])} is empty: found 0 rows; needed: at least 2 users")
    if rows:
        require_columns(columns, [("input_text",), ("output_text",), ("user_id",), *asked.values()])
        numbers = [columns.numbers(next(n for n in names if n in columns.names)) for names in asked.values()]
        labels = label.compute(*numbers)
        missing, bad = _missing(columns, label, labels)
        rejections, usable = [*columns.rejections, *missing], np.flatnonzero(~bad)
    else:
        labels, rejections, usable = np.zeros(0), [*columns.rejections], np.zeros(0, np.int64)
    read = rows + len(columns.rejections) - int(columns.bad.sum())
    if not len(usable):
        found = tally(rejections, read)
        raise InputError(
            f"none of the {read} rows of {one_line(source)} is usable: {found.line}; the first: {rejections[0]}"
        )
    users = id_array(columns.table["user_id"].take(usable))
    return Log(columns, labels, users, usable, rejections, read, form=_form_of(columns, usable, prompt_format))


def _form_of(columns: Columns, usable: np.ndarray, given: TextForm) -> Form:
    """The form of `input_text`, by its flag or by FORM_ROWS of the usable rows. Raises InputError for mixtures."""
    if given != "auto":
        return given
    rows = usable[:: max(1, len(usable) // FORM_ROWS)]
    counts = FormCounts("prompt")
    for row, text in zip(rows, columns.table["input_text"].take(rows).to_pylist(), strict=True):
        counts.add(text, columns.place(row)[1])
    return counts.decide(one_line(Path(columns.files[0]).name), "input_text", "prompt_format")


def mix_log(log: Log, settings: RowsConfig, seed: int) -> Log:
    """The log with the rows that are drawn of each data set. Raises InputError for a set without a usable row."""
    names = set_names(settings.dataset)
    weights = read_weights(settings.dataset_weights, names, "dataset_weights")
    places = np.array(log.columns.sets)[log.columns.file[log.usable]]
    for place in set(range(len(names))) - set(places.tolist()):
        files = {file for file, of_set in zip(log.columns.files, log.columns.sets, strict=True) if of_set == place}
        faults = [rejection for rejection in log.rejections if rejection.file in files]
        first = f"the first: {faults[0]}" if faults else "found 0 rows"
        raise InputError(f"none of the rows of {one_line(names[place])} is usable: {first}")
    kept, parts = mix(places, names, weights, seed)
    return replace(log, usable=log.usable[kept], users=log.users[kept], parts=parts)


def _missing(columns: Columns, label: Label, labels: np.ndarray) -> tuple[list[Rejection], np.ndarray]:
    """(rejections of rows with a missing value, [rows] true if a row is rejected for any reason)."""
    present = ~np.isnan(labels) if labels.dtype.kind == "f" else labels != MISSING
    faults = {
        "input_text": (_blank(columns, "input_text"), "null or empty", NO_PROMPT),
        "output_text": (_blank(columns, "output_text"), "null or empty", NO_REPLY),
        "user_id": (columns.is_null("user_id"), "null", NO_VALUE),
        ", ".join(label.columns): (~present.reshape(len(labels), -1).any(1), "null", NO_VALUE),
    }
    bad = columns.bad.copy()
    rejections: list[Rejection] = []
    for name, (at, found, reason) in faults.items():
        rejections += [Rejection(*columns.place(i), name, found, reason) for i in np.flatnonzero(at & ~bad)]
        bad |= at
    return rejections, bad


def _blank(columns: Columns, name: str) -> np.ndarray:
    """[rows], true if a text is null or white space."""
    import pyarrow.compute as compute

    blank = compute.equal(compute.binary_length(compute.utf8_trim_whitespace(columns.table[name])), 0)
    return compute.fill_null(blank, True).to_numpy()


def id_array(column: Any) -> np.ndarray:
    """Ids as integers or text; a missing one is NaN or empty."""
    import pyarrow.types

    if pyarrow.types.is_integer(column.type):
        return column.to_numpy()
    return column.fill_null("").to_numpy()


def limit_and_split(log: Log, config: RewardModelConfig) -> tuple[np.ndarray, np.ndarray, int, list[str]]:
    """(training rows, held-out rows, usable rows on neither side, notes): indices into the log's usable rows.

    Sides share no user; `eval_size` is met to within a user's rows, `train_size` is a sample of the other users' rows.
    """
    settings, seed = config.data, config.optimizer.split_seed
    kept = limit_users(log, config)
    size, notes = fitting_eval_size(settings.eval_size, len(kept), "rows")
    wanted = round(size * len(kept)) if size < 1 else int(size)
    if wanted < 1 or wanted >= len(kept):
        raise InputError(
            f"--eval_size {settings.eval_size:g} asks for {wanted} of {len(kept)} rows; needed: a share below 1, or a "
            f"number below {len(kept)}"
        )
    try:
        train, evaluation = split_by_group(log.users[kept], len(kept) - wanted, wanted, seed)
    except ValueError as error:
        raise InputError(f"the rows cannot be split by user: {error}") from error
    train = train[sample_rows(len(train), settings.train_size, seed)]
    return kept[train], kept[evaluation], len(log.usable) - len(train) - len(evaluation), notes


def limit_users(log: Log, config: RewardModelConfig) -> np.ndarray:
    """Indices into the usable rows, at most `rows_per_user` a user. Raises InputError where nothing is kept."""
    most = config.rows_per_user
    if most is None:
        return np.arange(len(log.usable))
    try:
        kept = limit_per_group(log.users, most, config.rows_per_user_mode, config.optimizer.split_seed)
    except ValueError as error:
        raise InputError(f"--rows_per_user {most}: {error}") from error
    if not len(kept):
        raise InputError(
            f"--rows_per_user {most} keeps none of the {len(log.usable)} rows; needed: 1 or more, or None for all"
        )
    return kept


def shared_users(a: np.ndarray, b: np.ndarray) -> int:
    """Number of users on both sides, also if their ids are of different types."""
    if a.dtype != b.dtype:
        a, b = a.astype(str), b.astype(str)
    return len(np.intersect1d(a, b))


def _conversation(text: str, form: Form) -> Conversation:
    return read_conversation(read_as(form, text, "prompt", "input_text", forced=True), "input_text")


def tokenize_log(
    log: Log, rows: np.ndarray, tokenizer, max_length: int, digest: "hashlib._Hash"
) -> tuple[LogRows, list[Rejection]]:
    """(tokenised rows whose reply fits, rejections of the others), of usable rows by index; updates the digest."""
    import pyarrow

    at = log.usable[rows]
    ids, lengths, dropped, shortened, reasons = [], [], [], [], []
    fits, prompts = np.zeros(len(at), dtype=bool), np.zeros(len(at), dtype=np.int64)
    for start in range(0, len(at), BLOCK):
        block = log.columns.table.take(pyarrow.array(at[start : start + BLOCK]))
        texts = [block[name].to_pylist() for name in ("input_text", "output_text")]
        digest.update("\0".join([*texts[0], *texts[1]]).encode())
        prompts[start : start + BLOCK] = [hash(text) for text in texts[0]]
        conversations = [_conversation(text, log.form) for text in texts[0]]
        found = tokenize_replies(tokenizer, conversations, [(reply_text(reply),) for reply in texts[1]], max_length)
        fits[start : start + BLOCK] = [isinstance(row, Replies) for row in found]
        reasons += [row for row in found if isinstance(row, str)]
        fitting = [row for row in found if isinstance(row, Replies)]
        ids.append(np.array([i for row in fitting for i in (*row.prefix, *row.suffixes[0])], dtype=np.int32))
        lengths += [row.tokens for row in fitting]
        dropped += [row.dropped_turns for row in fitting]
        shortened += [row.shortened for row in fitting]
    digest.update(np.ascontiguousarray(log.labels[at]).tobytes())
    tokens = TokenRows(
        np.concatenate([*ids, np.empty(0, np.int32)]),
        np.array(lengths, np.int64),
        np.array(dropped, np.int32),
        np.array(shortened, np.int32),
    )
    columns, kept = log.columns, at[fits]
    row_ids = id_array(columns.table["row_id"])[kept] if "row_id" in columns.table.column_names else None
    rejections = [
        rejection_of(*columns.place(i), "output_text", reason) for i, reason in zip(at[~fits], reasons, strict=True)
    ]
    return LogRows(
        tokens,
        log.labels[kept],
        log.users[rows[fits]],
        prompts[fits],
        row_ids,
        columns.files,
        columns.file[kept],
        columns.line[kept],
    ), rejections


def refuse_one_class(labels: np.ndarray, names: Sequence[str]) -> None:
    """Raises InputError if a label is the same in all training rows."""
    for name, column in zip(names, labels.reshape(len(labels), -1).T, strict=True):
        present = column[~np.isnan(column)] if column.dtype.kind == "f" else column[column != MISSING]
        if len(np.unique(present)) < 2:
            found = f"{present[0]:g} in all {len(present)} rows" if len(present) else "missing in every row"
            raise InputError(
                f"the label {name} is {found} to train on: nothing can be learned from it; needed: at least two "
                "values; check the columns that it is made of, or use more rows"
            )
