"""Rows to learn from: each player's view of an episode, as `messages`, with `meta`.

`meta` has game, experiment, task_id (number of the episode), game_id (of the instance), player_name, game_role, model,
and outcome: success, lose, aborted or unknown. Rows come from clembench's records, or from files of such rows, as
playpen-data is one. SFT learns from every reply of `messages`, and from the last alone of `prompt` and `completion`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from lmgym.apps.games.dialogue.records import GAME_MASTER, INTERACTIONS, PROGRAMMATIC, read_episodes
from lmgym.apps.games.dialogue.scoring import outcome_of_scores
from lmgym.console import say
from lmgym.data.records import Record, read_records
from lmgym.errors import InputError, listed, shown, shown_path
from lmgym.runs.files import write_lines

PROGRAMMED = frozenset({PROGRAMMATIC, "_player_programmed"})
"""models that are a part of the game: nobody learns from them"""
UNKNOWN = "unknown"
Loss = Literal["all", "last"]
Row = dict[str, Any]


@dataclass(frozen=True)
class RowFilter:
    """Values of `meta` to keep, by column; an empty tuple keeps all."""

    outcome: tuple[str, ...] = ()
    game: tuple[str, ...] = ()
    experiment: tuple[str, ...] = ()
    game_role: tuple[str, ...] = ()
    model: tuple[str, ...] = ()

    def keep(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with such values. Raises InputError for a value that no row has."""
        for column in fields(self):
            wanted = getattr(self, column.name)
            found = sorted({str(row["meta"].get(column.name, UNKNOWN)) for row in rows})
            if missing := [value for value in wanted if value not in found]:
                needed = f"needed: one of those there are, {listed(found)}"
                raise InputError(f"no row has the {column.name} {shown(missing[0])}; {needed}")
            rows = [row for row in rows if not wanted or str(row["meta"].get(column.name, UNKNOWN)) in wanted]
        return list(rows)


def rows_of_episode(interactions: Mapping[str, Any], outcome: str = UNKNOWN, task_id: int = 0) -> list[Row]:
    """A row for each player that replied, but the game master and programmed players.

    Raises ValueError for interactions without players or turns.
    """
    try:
        events = list(chain.from_iterable(interactions["turns"]))
        about = interactions.get("meta") or {}
        rows = []
        for name, player in interactions["players"].items():
            if name == GAME_MASTER or player["model_name"] in PROGRAMMED:
                continue
            messages = view_of(events, name)
            if not messages:
                continue
            meta = {
                "game": about.get("game_name", UNKNOWN),
                "experiment": about.get("experiment_name", UNKNOWN),
                "task_id": task_id,
                "game_id": about.get("game_id", 0),
                "player_name": name,
                "game_role": player.get("game_role", UNKNOWN),
                "model": player["model_name"],
                "outcome": outcome,
            }
            rows.append({"messages": messages, "meta": meta})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no interactions of clembench ({type(error).__name__}: {error})") from error
    return rows


def view_of(events: Iterable[Mapping[str, Any]], player: str) -> list[dict[str, str]]:
    """A player's view up to its last reply; messages of one side are joined by an empty line."""
    messages: list[dict[str, str]] = []
    for event in events:
        if event["from"] == GAME_MASTER and event["to"] == player:
            role = "user"
        elif event["from"] == player and event["to"] == GAME_MASTER:
            role = "assistant"
        else:
            continue
        content = str(event["action"]["content"])
        if messages and messages[-1]["role"] == role:
            messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n\n{content}"}
        else:
            messages.append({"role": role, "content": content})
    while messages and messages[-1]["role"] == "user":
        messages.pop()
    return messages


def read_dialogue_rows(source: str, split: str = "train") -> list[Row]:
    """The rows of a folder of records, of a file (JSONL, Parquet, ...) or folder of files, or of a data set of the hub.

    What cannot be read is reported and left out. Raises InputError if nothing is left.
    """
    path = Path(source).expanduser()
    is_records = path.is_dir() and next(path.rglob(INTERACTIONS), None) is not None
    rows = list(_rows_of_records(path) if is_records else _rows_of_files(source, split))
    if not rows:
        raise InputError(
            f"{shown_path(source)} holds no rows; needed: clembench's records with {INTERACTIONS}, or rows with "
            "messages and meta"
        )
    return rows


def _rows_of_records(results: Path) -> Iterator[Row]:
    for episode in read_episodes(results):
        outcome = outcome_of_scores(episode.records.outcome) or UNKNOWN
        number = re.search(r"\d+$", episode.folder.name)
        try:
            yield from rows_of_episode(episode.records.interactions or {}, outcome, int(number[0]) if number else 0)
        except ValueError as error:
            say(f"{shown_path(episode.folder)} is left out: {error}; needed: whole records", error=True)


def _rows_of_files(source: str, split: str) -> Iterator[Row]:
    records = read_records(source, split)
    faulty = [record for record in records if not _is_row(record)]
    if faulty and len(faulty) < len(records):
        first = faulty[0]
        why = f"without messages and meta, such as line {first.line} of {shown_path(first.file)}"
        say(f"{len(faulty):,} of {len(records):,} rows are left out: {why}", error=True)
    for record in records:
        if _is_row(record):
            yield {"messages": record.fields["messages"], "meta": record.fields["meta"]}


def _is_row(record: Record) -> bool:
    messages, meta = record.fields.get("messages"), record.fields.get("meta")
    return not record.fault and isinstance(messages, list) and bool(messages) and isinstance(meta, dict)


def with_loss(row: Row, loss: Loss) -> Row:
    """The row in the form from which SFT learns all of the player's replies, or the last alone."""
    if loss == "all":
        return row
    return {"prompt": row["messages"][:-1], "completion": row["messages"][-1:], "meta": row["meta"]}


def write_dialogue_rows(
    source: str, output: str | Path, keep: RowFilter | None = None, loss: Loss = "all", split: str = "train"
) -> list[Row]:
    """Writes the rows of a source that the filter keeps as JSONL; returns them. Raises InputError if there are none."""
    rows = [with_loss(row, loss) for row in (keep or RowFilter()).keep(read_dialogue_rows(source, split))]
    if not rows:
        raise InputError(f"no row of {shown_path(source)} has all of the values asked for; needed: fewer of them")
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, rows)
    return rows
