"""The file of a session: a JSON object per line, appended and synced, so that a kill loses at most the open turn.

Kinds of rows: "session" first, with what the turns that follow share, and again where that changes; "turn" for a new or
changed turn (the last row of an id counts); "decision" for one about a turn that the file has; "head" after going back;
and "failure". A row has nothing that can be rebuilt from those before it: a turn's prompt is the parent's conversation
with the new message. Files are readable by their owner only.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from types import NoneType
from typing import Any

from lmgym.apps.chat.exchanges import HUMAN_DECISIONS, Candidate, Exchange, preferences
from lmgym.errors import InputError, one_line, regular, shown_path
from lmgym.masking import mask_keys
from lmgym.messages import from_messages
from lmgym.runs.files import sync
from lmgym.text import Conversation, Turn, messages

FIELDS: dict[str, tuple[type, ...]] = {
    "selected": (int, NoneType),
    "selected_by": (str,),
    "human_pick": (int, str, NoneType),
    "edited_text": (str, NoneType),
    "tied": (list,),
    "scores_visible": (bool,),
    "seed": (int,),
    "sampling": (dict,),
    "dropped_turns": (int,),
    "failed": (dict,),
}
DECISION = ("selected", "selected_by", "human_pick", "edited_text", "tied", "scores_visible")
CANDIDATE_FIELDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "tokens": (int,),
    "finish_reason": (str,),
    "seed": (int,),
    "scores": (dict,),
    "policy": (str,),
    "thought": (str,),
}
COLUMNS = ("tokens", "finish_reason", "seed")  # one value where all candidates have the same


def to_record(exchange: Exchange, before: Conversation, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The exchange as a row of a session's file. An open one has no scores and policies, since users can read the file.

    `before` is the conversation up to the parent's reply, `sampling` the header's. The row has the user's message, a
    digest of `before` (its own line may be corrupt) and the fields that differ from the header, from `before` or from
    their defaults; the whole prompt only if that does not continue `before`. Candidates are columns.
    """
    prompt: dict[str, Any] = {}
    if exchange.prompt.turns != (*before.turns, Turn("user", exchange.user)):
        prompt = {"prompt": messages(exchange.prompt)}
    else:
        persona = exchange.prompt.persona
        prompt = {"before": digest(before)} | ({"persona": persona} if persona != before.persona else {})
    columns = {name: _folded([getattr(candidate, name) for candidate in exchange.candidates]) for name in COLUMNS}
    if any(candidate.policy for candidate in exchange.candidates) and not exchange.is_open:
        columns["policy"] = _folded([candidate.policy for candidate in exchange.candidates])
    if any(candidate.thought for candidate in exchange.candidates):
        columns["thought"] = [candidate.thought for candidate in exchange.candidates]
    known = {**_defaults(), "sampling": sampling, "seed": None}
    return {
        "turn": exchange.id,
        "parent": exchange.parent,
        **prompt,
        "user": exchange.user,
        "candidates": {
            "text": [candidate.text for candidate in exchange.candidates],
            **columns,
            "scores": {} if exchange.is_open else exchange.columns,
        },
        **{name: value for name in FIELDS if (value := getattr(exchange, name)) != known[name]},
    }


def to_decision(exchange: Exchange) -> dict[str, Any]:
    """The row of a decision about a turn whose own row has its candidates and scores."""
    known = _defaults()
    changed = {name: value for name in DECISION if (value := getattr(exchange, name)) != known[name]}
    return {"turn": exchange.id, **changed}


def from_record(row: dict[str, Any], before: Conversation, sampling: Mapping[str, Any] | None) -> Exchange:
    """The exchange of a row by `to_record`, or by an earlier version, which wrote a row per candidate and every field.

    Raises KeyError, TypeError or ValueError for an invalid row.
    """
    tree = _typed(row, {"turn": (int,), "parent": (int, NoneType), "candidates": (list, dict)})
    values = _typed({**_defaults(), "sampling": sampling, "seed": None, **row}, FIELDS)
    exchange = Exchange(tree["turn"], tree["parent"], _prompt(row, before), _candidates(tree["candidates"]), **values)
    _validate(exchange)
    return exchange


def digest(conversation: Conversation) -> str:
    """A hash of 16 hexadecimal digits."""
    return blake2b(json.dumps(messages(conversation)).encode(), digest_size=8).hexdigest()


def _defaults() -> dict[str, Any]:
    """Values of the fields that a row may omit."""
    return vars(Exchange(0, None, Conversation(()), [], 0, {}))


def _folded(values: list[Any]) -> Any:
    """The value that all have, or else the list."""
    return values[0] if len(set(values)) == 1 else values


def _candidates(value: list | dict) -> list[Candidate]:
    """Candidates of columns, or of a row each."""
    rows = value
    if isinstance(value, dict):
        parts = _typed(value, {"text": (list,), "scores": (dict,)})
        texts, scores = parts["text"], parts["scores"]
        single = [*(value[name] for name in COLUMNS), value.get("policy", ""), value.get("thought", "")]
        *columns, policies, thoughts = [one if type(one) is list else [one] * len(texts) for one in single]
        by_candidate = zip(*scores.values(), strict=True) if scores else [()] * len(texts)
        named = [dict(zip(scores, numbers, strict=True)) for numbers in by_candidate]
        columns = [texts, *columns, named, policies, thoughts]
        rows = [dict(zip(CANDIDATE_FIELDS, row, strict=True)) for row in zip(*columns, strict=True)]
    return [Candidate(**_typed({"policy": "", "thought": "", **row}, CANDIDATE_FIELDS)) for row in rows]


def _prompt(row: dict[str, Any], before: Conversation) -> Conversation:
    if "prompt" in row:
        return from_messages(_typed(row, {"prompt": (list,)})["prompt"])
    texts = _typed({"persona": before.persona, **row}, {"user": (str,), "persona": (str,)})
    return Conversation((*before.turns, Turn("user", texts["user"])), texts["persona"])


def _typed(row: dict[str, Any], types: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """The fields named in `types`. Raises TypeError unless each has exactly one of its types: true is not 1."""
    for name, allowed in types.items():
        if type(row[name]) not in allowed:
            raise TypeError(f"{name} is {type(row[name]).__name__}")
    return {name: row[name] for name in types}


def _validate(exchange: Exchange) -> None:
    """Raises TypeError or ValueError for values that would fail, loop or send control characters to the screen."""
    prompt, candidates, picked = exchange.prompt.turns, exchange.candidates, exchange.human_pick
    if not (prompt and prompt[-1].speaker == "user" and candidates):
        raise ValueError("a turn needs a user's message and at least one candidate")
    if not exchange.id > (exchange.parent or 0):
        raise ValueError("the id of a turn is above its parent's")
    if isinstance(picked, str) and picked not in HUMAN_DECISIONS:
        raise ValueError(f"human_pick is none of {', '.join(HUMAN_DECISIONS)}")
    places = [place for place in (exchange.selected, picked) if place is not None and place not in HUMAN_DECISIONS]
    if not all(type(place) is int and 0 <= place < len(candidates) for place in [*places, *exchange.tied]):
        raise ValueError("a candidate's number is out of range")
    scores = [score for candidate in candidates for score in candidate.scores.values()]
    if not all(score is None or math.isfinite(score) for score in scores):
        raise ValueError("a score is not finite")


@dataclass
class LoadedSession:
    """The content of a session's file."""

    conversation_id: str | None = None
    """None until the header is read"""
    opening: Conversation = field(default_factory=lambda: Conversation(()))
    sampling: dict[str, Any] | None = None
    """of the turns whose rows name none; files of earlier versions have it in every row"""
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
    data = mask_keys("".join(f"{json.dumps(row, separators=(',', ':'))}\n" for row in rows)).encode()
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
        lines = regular(path).read_bytes().split(b"\n")
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
        loaded.sampling = row.get("sampling")
    elif row["kind"] == "turn":
        parent = row["parent"] if row["parent"] in loaded.exchanges else None  # its line may be corrupt
        before = conversation_before(parent, loaded.exchanges, loaded.opening.turns)
        exchange = from_record(row, before, loaded.sampling)
        exchange.parent = parent
        changed = "prompt" not in row and row["before"] != digest(before)
        if changed and exchange.id not in loaded.orphans:
            loaded.orphans.append(exchange.id)
        loaded.exchanges[exchange.id] = exchange
        loaded.head = exchange.id
    elif row["kind"] == "decision":
        decided = _typed({**_defaults(), **row}, {name: FIELDS[name] for name in DECISION})
        exchange = replace(loaded.exchanges[row["turn"]], **decided)
        _validate(exchange)
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
