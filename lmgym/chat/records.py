"""The file of a session: a JSON object per line, appended and synced, so that a kill loses at most the open turn.

Kinds of rows: "session" first, "turn" after every change of a turn (the last row of an id counts), "head" after going
back, and "failure". A turn's row has the new message only: its prompt is the parent's conversation with that message.
Files are readable by their owner only.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmgym.chat.exchanges import Exchange, digest, from_record
from lmgym.errors import InputError, one_line, shown_path
from lmgym.runs.files import sync
from lmgym.text import Conversation, Turn, from_messages, messages


@dataclass
class LoadedSession:
    """The content of a session's file."""

    conversation_id: str | None = None
    """None until the header is read"""
    opening: Conversation = field(default_factory=lambda: Conversation(()))
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    head: int | None = None
    corrupt: list[int] = field(default_factory=list)
    """numbers of the lines that could not be read"""
    orphans: list[int] = field(default_factory=list)
    """turns whose parent's line could not be read, so that the conversation before them is unknown"""


def conversation_before(
    parent: int | None, exchanges: Mapping[int, Exchange], opening: tuple[Turn, ...]
) -> Conversation:
    """The conversation that a child of `parent` continues. Raises ValueError if the parent is open."""
    if parent is None:
        return Conversation(opening)
    if exchanges[parent].reply is None:
        raise ValueError("a turn follows one that is not decided")
    return exchanges[parent].conversation


class SessionFile:
    """Appends rows to a session's file; those that could not be written are kept for the next time."""

    def __init__(self, path: Path, earlier_rows: Callable[[], list[dict[str, Any]]]) -> None:
        self.path, self.earlier_rows = path, earlier_rows
        self.unwritten: list[dict[str, Any]] = []

    def append(self, row: dict[str, Any]) -> str:
        """Writes a row, after all earlier ones if the file does not exist. Returns an error message, or ""."""
        self.unwritten.append(row)
        try:
            if not self.path.exists():
                self.unwritten = [*self.earlier_rows(), row]
            append(self.path, *self.unwritten)
        except OSError as error:
            return f"NOT RECORDED: {self.path} cannot be written ({error.strerror}); %save PATH elsewhere"
        self.unwritten = []
        return ""


def append(path: Path, *rows: dict[str, Any]) -> None:
    """Appends rows to the file in one system call, and syncs them to the disk."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data  # a kill cut the last line short
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    if is_new:
        sync(path.parent)


def write_whole(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Writes a file of these rows, completely or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    append(partial, *rows)
    os.replace(partial, path)
    sync(path.parent)


def load(path: Path) -> LoadedSession:
    """The session of a file. Raises InputError for a file that is not a session."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"cannot load a session from {shown_path(path)}: {error.strerror}{_nearby(path)}") from None
    loaded = LoadedSession()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _add(loaded, json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            loaded.corrupt.append(number)
    if loaded.conversation_id is None:
        raise InputError(
            f"{shown_path(path)} is not a session file: it has no header; sessions are in outputs/sessions/"
        )
    return loaded


def _add(loaded: LoadedSession, row: dict[str, Any]) -> None:
    if row["kind"] == "session":
        loaded.conversation_id, loaded.opening = str(row["conversation"]), from_messages(row["opening"])
    elif row["kind"] == "turn":
        parent = row["parent"] if row["parent"] in loaded.exchanges else None  # its line may be corrupt
        before = conversation_before(parent, loaded.exchanges, loaded.opening.turns)
        exchange = from_record(row, before)
        exchange.parent = parent
        changed = "prompt" not in row and row["before"] != digest(before)
        if changed and exchange.id not in loaded.orphans:
            loaded.orphans.append(exchange.id)
        loaded.exchanges[exchange.id] = exchange
        loaded.head = exchange.id
    elif row["kind"] == "head":
        if row["turn"] is not None and row["turn"] not in loaded.exchanges:
            raise ValueError("unknown turn")
        loaded.head = row["turn"]


def _nearby(path: Path) -> str:
    names = sorted(path.parent.glob("*.jsonl"))[-3:] if os.path.isdir(path.parent) else []
    return "; available: " + one_line(", ".join(map(str, names)), 600) if names else ""


@dataclass(frozen=True)
class ExportCounts:
    """Numbers of exported pairs, and of the decisions they come from."""

    pairs: int
    ties: int
    rejections: int
    decisions: int
    prompts: int
    """different prompts of the pairs"""


def preferences(exchanges: Sequence[Exchange], group: str) -> list[dict[str, Any]]:
    """A row per pair: the reply that the user picked or wrote, and each candidate with another text.

    Of two decisions on the same two replies to the same prompt, such as on two branches, the later one counts.
    """
    rows: dict[str, dict[str, Any]] = {}
    for exchange in exchanges:
        if exchange.human_pick is None or exchange.human_pick in ("tie", "rejected"):
            continue
        chosen = (exchange.reply or "").strip()
        for other in exchange.candidates:
            rejected = other.text.strip()
            if not chosen or not rejected or rejected == chosen:
                continue
            row = {
                "prompt": messages(exchange.prompt),
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
                "group": group,
                "turn": exchange.id,
                "scores_visible": exchange.scores_visible,
            }
            rows[json.dumps([row["prompt"], *sorted((chosen, rejected))])] = row
    return list(rows.values())


def export_preferences(exchanges: Sequence[Exchange], group: str, path: Path) -> ExportCounts:
    """Writes `preferences` as JSONL for `hh_pairwise`. Raises InputError if there are none."""
    rows = preferences(exchanges, group)
    decided = [exchange.human_pick for exchange in exchanges if exchange.human_pick is not None]
    prompts = len({json.dumps(row["prompt"]) for row in rows})
    counts = ExportCounts(len(rows), decided.count("tie"), decided.count("rejected"), len(decided), prompts)
    if not rows:
        raise InputError(
            f"nothing to export: {counts.decisions} decisions, of which {counts.ties} ties and {counts.rejections} "
            "rejections; prefer a reply with %pick or %write"
        )
    try:
        write_whole(path, rows)
    except OSError as error:
        raise InputError(f"{shown_path(path)} cannot be written: {error.strerror}") from None
    return counts
