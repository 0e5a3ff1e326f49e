"""Labelled sets of transcripts that a scorer is judged on during training; one file each in the `--probe_data` folder.

`text` is a whole transcript that ends in the bot's reply. What a set measures is in reward_models/metrics.py.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lmgym.errors import InputError, shown_path
from lmgym.records import read_columns, require_columns
from lmgym.text import Conversation, Replies, from_transcript
from lmgym.truncation import tokenize_replies
from reward_models.metrics import (
    Metrics,
    gold_correlation,
    human_ranking,
    reject_worst,
    retention,
    retry_continue,
)

ColumnsByName = Mapping[str, np.ndarray]
RANK = "rank (lower is better)"


@dataclass(frozen=True)
class Evaluation:
    """A set by its file, the columns it needs beside `text`, and its measure of one score a row."""

    name: str
    file: str
    columns: tuple[str, ...]
    measure: Callable[[np.ndarray, ColumnsByName], Metrics]
    shown: Mapping[str, str] = field(default_factory=dict)
    """figures of the table at a run's end, with what they are called there"""
    group: str = ""
    """a column of which rows of one value stay together"""


def _retry(scores: np.ndarray, rows: ColumnsByName) -> Metrics:
    ids = rows.get("user_id"), rows.get("prompt_id")
    return retry_continue(scores, rows["retried"], rows["end_of_conversation"], *ids)


def _retention(scores: np.ndarray, rows: ColumnsByName) -> Metrics:
    ids = rows.get("user_id"), rows.get("prompt_id")
    return retention(scores, rows["d3"], rows["d7"], rows["d30"], rows["is_new_user"], *ids)


RETRY = Evaluation(
    "retry",
    "retry_eval",
    ("retried", "end_of_conversation"),
    _retry,
    {"retry_auc": "AUC, retried scored low", "end_of_convo_auc": "AUC, end of the conversation scored low"},
)
RETENTION = Evaluation(
    "retention",
    "retention_eval",
    ("d3", "d7", "d30", "is_new_user"),
    _retention,
    {f"d{day}_auc": f"AUC, back on day {day} scored high" for day in (3, 7, 30)},
)
RANKING = Evaluation(
    "ranking",
    "ranking_eval",
    ("id", RANK),
    lambda scores, rows: human_ranking(scores, rows[RANK], rows["id"]),
    {"kendall_tau": "Kendall tau with people's ranking", "top_2_acc": "top two as people's"},
    "id",
)
REJECT = Evaluation(
    "reject",
    "reject_eval",
    ("id", "label", "is_nsfw", "new_user"),
    lambda scores, rows: reject_worst(scores, rows["label"], rows["id"], rows["is_nsfw"], rows["new_user"]),
    {"overall_acc": "rejected reply scored lowest"},
    "id",
)
GOLD = Evaluation(
    "gold",
    "gold_eval",
    ("utility",),
    lambda scores, rows: gold_correlation(scores, rows["utility"], rows.get("user_id"), rows.get("prompt_id")),
    {"gold_spearman": "Spearman with the hidden utility"},
)


@dataclass(frozen=True)
class EvaluationSet:
    """An evaluation's rows, tokenised, and what had to be left out."""

    evaluation: Evaluation
    replies: list[Replies]
    columns: dict[str, np.ndarray]
    left_out: str = ""


def find_file(folder: str, name: str) -> Path | None:
    """`name` as .parquet or .jsonl in a folder. Raises InputError where there is no folder."""
    if not os.path.isdir(os.path.expanduser(folder)):
        raise InputError(
            f"--probe_data {shown_path(folder)} is no folder; needed: one with retry_eval.parquet and the like, or None"
        )
    paths = [Path(folder).expanduser() / f"{name}{suffix}" for suffix in (".parquet", ".jsonl")]
    return next((path for path in paths if path.is_file()), None)


def read_evaluation(path: Path, evaluation: Evaluation, rows: int, tokenizer, max_length: int) -> EvaluationSet:
    """The first rows of a set, groups whole. Raises InputError for missing columns and for values it cannot measure.

    Rows without a bot's reply at their end, and those too long, are left out and counted.
    """
    wanted = ("text", *evaluation.columns, "user_id", "prompt_id")
    found = read_columns(str(path), wanted)
    require_columns(found, [(name,) for name in ("text", *evaluation.columns)])
    columns = {name: found.table[name].to_numpy() for name in found.table.column_names}
    kept = _first_rows(columns, rows, evaluation.group)
    chats = [split_reply(text) for text in columns["text"][kept].tolist()]
    usable = [(int(row), *chat) for row, chat in zip(kept, chats, strict=True) if chat is not None]
    tokenized = tokenize_replies(tokenizer, [c for _, c, _ in usable], [(r,) for _, _, r in usable], max_length)
    fitting = [
        (row, replies) for (row, _, _), replies in zip(usable, tokenized, strict=True) if isinstance(replies, Replies)
    ]
    if not fitting:
        raise InputError(
            f"{path} has no usable row: {len(columns['text'])} rows, {len(usable)} end in a bot's reply; needed: text "
            'as in "User: hi\\nBot: hello", of at most --max_length tokens'
        )
    if "prompt_id" not in columns:
        columns["prompt_id"] = _number(columns["text"], kept, chats)
    rows_kept = np.array([row for row, _ in fitting])
    selected = {name: values[rows_kept] for name, values in columns.items() if name != "text"}
    if len(np.unique(selected["prompt_id"])) == len(fitting):
        del selected["prompt_id"]  # no two replies to one prompt: nothing within prompts
    try:
        evaluation.measure(np.arange(len(fitting), dtype=np.float64), selected)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: {error}") from error
    lost = len(kept) - len(fitting)
    left_out = f"{lost} of {len(kept)} rows left out: no bot's reply at the end, or too long" if lost else ""
    return EvaluationSet(evaluation, [replies for _, replies in fitting], selected, left_out)


def _first_rows(columns: ColumnsByName, rows: int, group: str) -> np.ndarray:
    """Indices of the first rows; of a grouped set without the groups that go on behind them."""
    first = np.arange(min(rows, len(columns["text"])))
    if not group:
        return first
    return first[~np.isin(columns[group][first], columns[group][len(first) :])]


def split_reply(text: str | None) -> tuple[Conversation, str] | None:
    """A transcript as the conversation and the bot's reply that ends it; None where it ends otherwise."""
    chat = from_transcript(text or "")
    if len(chat.turns) < 2 or chat.turns[-1].speaker != "bot" or not chat.turns[-1].text:
        return None
    return Conversation(chat.turns[:-1], chat.persona), chat.turns[-1].text


def _number(texts: np.ndarray, kept: np.ndarray, chats: list[tuple[Conversation, str] | None]) -> np.ndarray:
    """A number for each distinct conversation, at the rows that were kept."""
    numbers: dict[Conversation, int] = {}
    prompts = np.full(len(texts), -1)
    for row, chat in zip(kept.tolist(), chats, strict=True):
        if chat is not None:
            prompts[row] = numbers.setdefault(chat[0], len(numbers))
    return prompts
