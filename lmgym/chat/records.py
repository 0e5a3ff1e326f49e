"""A session's file: a line a turn, appended and synced, so that a kill loses at most the open turn.

Lines are JSON objects: {"kind": "session"} first, then {"kind": "turn"} after every change of a turn (the last of an
id holds), {"kind": "head"} where the person went back, and {"kind": "failure"}. A turn's line has what is new in it:
its prompt is that of its parent with the reply, and the user's line behind. Files are their owner's alone to read.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmgym.chat.exchanges import Exchange, digest, from_record
from lmgym.errors import InputError, one_line, shown_path
from lmgym.text import Conversation, from_messages, messages


@dataclass
class Loaded:
    """What a session's file says. `conversation` is its id, None of a file that is none; `broken` could not be read."""

    conversation: str | None = None
    opening: Conversation = field(default_factory=lambda: Conversation(()))
    exchanges: dict[int, Exchange] = field(default_factory=dict)
    head: int | None = None
    broken: list[int] = field(default_factory=list)
    orphans: list[int] = field(default_factory=list)
    """turns that follow one whose line could not be read: what was said before them is not known"""

    def before(self, parent: int | None) -> Conversation:
        """What was said before a turn that follows another, or none. Raises ValueError where that one is open."""
        if parent is None:
            return Conversation(self.opening.turns)
        return said_until(self.exchanges[parent])


def said_until(exchange: Exchange) -> Conversation:
    """What a turn that follows finds said. Raises ValueError for an exchange that is open."""
    if exchange.reply is None:
        raise ValueError("a turn follows one that is not decided")
    return exchange.conversation


def append(path: Path, *rows: dict[str, Any]) -> None:
    """Writes lines to the end of the file in one call of the system, and syncs them to the disk."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    is_new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            data = b"\n" + data  # a kill cut the last line short: it stays alone in its line
        while data:
            data = data[os.write(handle, data) :]
        os.fsync(handle)
    finally:
        os.close(handle)
    if is_new:
        _sync_folder(path.parent)


def write_whole(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """A file of these lines and no others, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    append(partial, *rows)
    os.replace(partial, path)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: Path) -> Loaded:
    """A session as its file tells it. Raises InputError for a file that is none."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(f"no session loads from {shown_path(path)}: {error.strerror}{_near(path)}") from None
    loaded = Loaded()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            _take(loaded, json.loads(line))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            loaded.broken.append(number)
    if loaded.conversation is None:
        raise InputError(
            f"{shown_path(path)} is no session: no line of it begins one; outputs/sessions/ holds those that were kept"
        )
    return loaded


def _take(loaded: Loaded, row: dict[str, Any]) -> None:
    if row["kind"] == "session":
        loaded.conversation, loaded.opening = str(row["conversation"]), from_messages(row["opening"])
    elif row["kind"] == "turn":
        parent = row["parent"] if row["parent"] in loaded.exchanges else None  # its line may be broken
        before = loaded.before(parent)
        exchange = from_record(row, before)
        exchange.parent = parent
        changed = "prompt" not in row and row["before"] != digest(before)
        if changed and exchange.id not in loaded.orphans:
            loaded.orphans.append(exchange.id)
        loaded.exchanges[exchange.id] = exchange
        loaded.head = exchange.id
    elif row["kind"] == "head":
        if row["turn"] is not None and row["turn"] not in loaded.exchanges:
            raise ValueError("a turn that was not read")
        loaded.head = row["turn"]


def _near(path: Path) -> str:
    found = sorted(path.parent.glob("*.jsonl"))[-3:] if os.path.isdir(path.parent) else []
    return "; there are " + one_line(", ".join(map(str, found)), 600) if found else ""


@dataclass
class Exported:
    """How many preferences were written, and what gave none."""

    pairs: int = 0
    ties: int = 0
    rejections: int = 0
    decisions: int = 0


def preferences(exchanges: Sequence[Exchange], group: str) -> list[dict[str, Any]]:
    """A row a pair: what a person picked or wrote against every other candidate with another text.

    Of two decisions on the same two replies to the same prompt, as on two branches, the later one holds.
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


def export_preferences(exchanges: Sequence[Exchange], group: str, path: Path) -> Exported:
    """Writes `preferences` as JSONL, which `hh_pairwise` trains on. Raises InputError where there is none to write."""
    rows = preferences(exchanges, group)
    decided = [exchange.human_pick for exchange in exchanges if exchange.human_pick is not None]
    counts = Exported(len(rows), decided.count("tie"), decided.count("rejected"), len(decided))
    if not rows:
        raise InputError(
            f"nothing to export: {counts.decisions} decisions, of which {counts.ties} ties and {counts.rejections} "
            "rejections; %pick or %write prefers a reply to others"
        )
    try:
        write_whole(path, rows)
    except OSError as error:
        raise InputError(f"{shown_path(path)} cannot be written: {error.strerror}") from None
    return counts
