"""Labelled sets of transcripts for evaluation during training; one file each in the `--probe_data` folder.

`text` is a whole transcript that ends in the bot's reply. Their measures are in outcomes.py and rankings.py.
"""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lmgym.data.column_kinds import ID, NUMBER, TEXT, Kind
from lmgym.data.columns import Columns, read_columns, require_columns
from lmgym.data.rejections import NO_REPLY, NO_VALUE, Rejection, Tally, tally
from lmgym.data.truncation import rejection_of, tokenize_replies
from lmgym.errors import InputError, one_line, shown_path
from lmgym.messages import from_transcript
from lmgym.text import Conversation, Replies
from reward_models.metrics.figures import Metrics
from reward_models.metrics.labels import FLAG
from reward_models.metrics.outcomes import gold_correlation, retention, retry_continue
from reward_models.metrics.rankings import human_ranking, reject_worst

ColumnsByName = Mapping[str, np.ndarray]
RANK = "rank (lower is better)"


@dataclass(frozen=True)
class Evaluation:
    """A set by its file, the columns it needs beside `text`, and its measure of one score a row."""

    name: str
    file: str
    columns: Mapping[str, Kind]
    measure: Callable[[np.ndarray, ColumnsByName], Metrics]
    shown: Mapping[str, str] = field(default_factory=dict)
    """figures of the table at a run's end, with their labels"""
    group: str = ""
    """a column of which rows of one value stay together"""
    nullable: tuple[str, ...] = ()
    """columns that may be null: unknown"""


def _retry(scores: np.ndarray, rows: ColumnsByName) -> Metrics:
    return retry_continue(
        scores, rows["retried"], rows["end_of_conversation"], rows.get("user_id"), rows.get("prompt_id")
    )


def _retention(scores: np.ndarray, rows: ColumnsByName) -> Metrics:
    return retention(
        scores, rows["d3"], rows["d7"], rows["d30"], rows["is_new_user"], rows.get("user_id"), rows.get("prompt_id")
    )


RETRY = Evaluation(
    "retry",
    "retry_eval",
    {"retried": FLAG, "end_of_conversation": FLAG},
    _retry,
    {"retry_auc": "AUC, retried scored low", "end_of_convo_auc": "AUC, end of the conversation scored low"},
)
RETENTION = Evaluation(
    "retention",
    "retention_eval",
    {"d3": FLAG, "d7": FLAG, "d30": FLAG, "is_new_user": FLAG},
    _retention,
    {f"d{day}_auc": f"AUC, back on day {day} scored high" for day in (3, 7, 30)},
    nullable=("d3", "d7", "d30"),
)
RANKING = Evaluation(
    "ranking",
    "ranking_eval",
    {"id": ID, RANK: NUMBER},
    lambda scores, rows: human_ranking(scores, rows[RANK], rows["id"]),
    {"kendall_tau": "Kendall tau with people's ranking", "top_2_acc": "top two as people's"},
    "id",
)
REJECT = Evaluation(
    "reject",
    "reject_eval",
    {"id": ID, "label": FLAG, "is_nsfw": FLAG, "new_user": FLAG},
    lambda scores, rows: reject_worst(scores, rows["label"], rows["id"], rows["is_nsfw"], rows["new_user"]),
    {"overall_acc": "rejected reply scored lowest"},
    "id",
)
GOLD = Evaluation(
    "gold",
    "gold_eval",
    {"utility": NUMBER},
    lambda scores, rows: gold_correlation(scores, rows["utility"], rows.get("user_id"), rows.get("prompt_id")),
    {"gold_spearman": "Spearman with the hidden utility"},
)


@dataclass(frozen=True)
class EvaluationSet:
    """An evaluation's rows, tokenised, and what had to be left out."""

    evaluation: Evaluation
    replies: list[Replies]
    columns: dict[str, np.ndarray]
    tally: Tally
    """of its rejected rows"""

    @property
    def left_out(self) -> str:
        """Number of rows and reasons in words; empty if there are none."""
        found = self.tally
        return f"{sum(found.rejected.values()):,} of {found.rows:,} rows left out: {found.reasons}" * bool(found.first)


def find_file(folder: str, name: str) -> Path | None:
    """`name` as .parquet or .jsonl in a folder. Raises InputError where there is no folder."""
    if not os.path.isdir(os.path.expanduser(folder)):
        raise InputError(
            f"--probe_data {shown_path(folder)} is no folder; needed: one with retry_eval.parquet and the like, or None"
        )
    paths = [Path(folder).expanduser() / f"{name}{suffix}" for suffix in (".parquet", ".jsonl")]
    return next((path for path in paths if path.is_file()), None)


def read_evaluation(path: Path, evaluation: Evaluation, rows: int, tokenizer, max_length: int) -> EvaluationSet:
    """The first rows of a set, groups whole. Raises InputError for missing columns and where no row is usable.

    Rows with a value that is missing or cannot be, without a bot's reply at their end, and those too long are left out
    and counted.
    """
    found = read_columns(str(path), {"text": TEXT, "user_id": ID, "prompt_id": ID, **evaluation.columns})
    if len(found.line):
        require_columns(found, [(name,) for name in ("text", *evaluation.columns)])
    kept, rejections = _first_rows(found, rows, evaluation)
    chats = zip(kept, found.table["text"].take(kept).to_pylist() if len(kept) else [], strict=True)
    usable: list[tuple[int, Conversation, str]] = []
    for row, text in chats:
        chat = split_reply(text)
        if chat is None:
            rejections.append(Rejection(*found.place(row), "text", "no bot's reply at its end", NO_REPLY))
        else:
            usable.append((int(row), *chat))
    tokenized = tokenize_replies(tokenizer, [c for _, c, _ in usable], [(r,) for _, _, r in usable], max_length)
    fitting: list[tuple[int, Conversation, Replies]] = []
    for (row, conversation, _), replies in zip(usable, tokenized, strict=True):
        if isinstance(replies, Replies):
            fitting.append((row, conversation, replies))
        else:
            rejections.append(rejection_of(*found.place(row), "text", replies))
    counts = tally(rejections, len(fitting) + len(rejections))
    if not fitting:
        raise InputError(
            f"{one_line(str(path))} has no usable row: {counts.line}; needed: text as in "
            f'"User: hi\\nBot: hello", of at most --max_length tokens{_first(rejections)}'
        )
    selected = _select(found, [row for row, _, _ in fitting], [chat for _, chat, _ in fitting])
    try:
        evaluation.measure(np.arange(len(fitting), dtype=np.float64), selected)
    except (ValueError, TypeError) as error:
        raise InputError(f"{one_line(str(path))}: {one_line(str(error))}") from error
    return EvaluationSet(evaluation, [replies for _, _, replies in fitting], selected, counts)


def _first(rejections: list[Rejection]) -> str:
    return f"; the first: {rejections[0]}" if rejections else ""


def _first_rows(found: Columns, rows: int, evaluation: Evaluation) -> tuple[np.ndarray, list[Rejection]]:
    """(usable rows, rejections) of the first rows, without groups that continue after them."""
    import pyarrow.compute as compute

    first = np.arange(min(rows, len(found.line)))
    if evaluation.group and len(first) < len(found.line):
        groups = found.table[evaluation.group]
        behind = groups.slice(len(first)).combine_chunks()
        first = first[~compute.is_in(groups.slice(0, len(first)), value_set=behind).to_numpy()]
    last = int(found.line[first[-1]]) if len(first) and len(first) < len(found.line) else math.inf
    rejections = [one for one in found.rejections if one.line <= last]
    bad = found.bad.copy()
    for name in found.table.column_names:
        if name not in (*evaluation.nullable, "text"):
            null = found.is_null(name) & ~bad
            rejections += [Rejection(*found.place(row), name, "null", NO_VALUE) for row in first[null[first]]]
            bad |= null
    return first[~bad[first]], rejections


def _select(found: Columns, rows: list[int], conversations: list[Conversation]) -> dict[str, np.ndarray]:
    """The columns at these rows, with a number of each distinct conversation as prompt_id unless the set has one."""
    columns = {name: found.table[name].take(rows).to_numpy() for name in found.table.column_names if name != "text"}
    if "prompt_id" not in columns:
        numbers: dict[Conversation, int] = {}
        columns["prompt_id"] = np.array([numbers.setdefault(chat, len(numbers)) for chat in conversations])
    if len(np.unique(columns["prompt_id"])) == len(rows):
        del columns["prompt_id"]  # no two replies to one prompt: nothing within prompts
    return columns


def split_reply(text: str | None) -> tuple[Conversation, str] | None:
    """A transcript as a conversation and the bot's reply at its end; None if it does not end in one."""
    chat = from_transcript(text or "")
    if len(chat.turns) < 2 or chat.turns[-1].speaker != "bot" or not chat.turns[-1].text:
        return None
    return Conversation(chat.turns[:-1], chat.persona), chat.turns[-1].text
