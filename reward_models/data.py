"""Preference pairs: validated, split by prompt, tokenised. What is left out is recorded, never dropped.

Accepted rows: `prompt/chosen/rejected` and `chosen/rejected`, as strings or as messages (TRL's standard and
conversational types), with an optional number `margin`; hh transcripts ("\\n\\nHuman:"/"\\n\\nAssistant:") and flat
ones ("User:"/"Bot:"). Without a prompt column the prompt is what both sides begin with.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from lmgym.errors import InputError
from lmgym.records import Record
from lmgym.text import Conversation, Replies, from_messages, from_transcript, tokenize_replies

COLUMNS = ("chosen", "rejected")


@dataclass(frozen=True)
class Pair:
    """Two replies to one conversation, of which a person chose the first."""

    conversation: Conversation
    chosen: str
    rejected: str
    margin: float = 0.0
    file: str = ""
    line: int = 0

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that differ in case and white space only: near duplicates stay on one side of a split."""
        return prompt_key(self.conversation)

    @property
    def answers(self) -> tuple[str, str, float]:
        """Both replies and the margin."""
        return self.chosen, self.rejected, self.margin


def prompt_key(conversation: Conversation) -> str:
    """A conversation's text without case and white space."""
    turns = [conversation.persona, *(f"{t.speaker} {t.text}" for t in conversation.turns)]
    return " ".join(" ".join(turns).lower().split())


class Prompted(Protocol):
    """A row that answers a prompt."""

    @property
    def file(self) -> str:
        """Where it was found."""
        ...

    @property
    def line(self) -> int:
        """On which line."""
        ...

    @property
    def prompt_key(self) -> str:
        """Equal for prompts that belong on one side of a split."""
        ...

    @property
    def answers(self) -> tuple:
        """The replies and what was said of them, as JSON can hold it."""
        ...


P = TypeVar("P", bound=Prompted)
T = TypeVar("T")


@dataclass(frozen=True)
class Rejection:
    """A row that cannot be used: where it stands, which field, and what was found."""

    file: str
    line: int
    field: str
    found: str


class RowError(Exception):
    """A fault of one row: (field, what was found)."""


def validate(records: Sequence[Record]) -> tuple[list[Pair], list[Rejection]]:
    """Every record as a pair or as a rejection. Raises InputError where no row has the columns that are needed."""
    needed = "chosen and rejected, and optionally prompt and margin (rename yours to these)"
    require_some_columns(records, COLUMNS, "pairs", needed)
    seen: dict[tuple, int] = {}

    def read(record: Record) -> Pair:
        pair = _pair(record)
        _refuse_duplicate(pair, seen)
        return pair

    return read_rows(records, read)


def require_some_columns(records: Sequence[Record], columns: Sequence[str], noun: str, needed: str) -> None:
    """Raises InputError for no rows, and where no row has all columns."""
    if not records:
        raise InputError(f"the dataset is empty: found 0 rows; needed: at least 2 {noun}")
    if not any(set(columns) <= set(record.fields) for record in records):
        found = sorted({name for record in records[:100] for name in record.fields})
        missing = [name for name in columns if name not in found]
        raise InputError(
            f"{records[0].file} lacks the columns {' and '.join(missing)}; found: {', '.join(found) or 'none'}; "
            f"needed: {needed}"
        )


def read_rows(records: Iterable[Record], read: Callable[[Record], T]) -> tuple[list[T], list[Rejection]]:
    """What `read` makes of each record, and a rejection for each that it refuses by a RowError."""
    rows, rejections = [], []
    for record in records:
        try:
            rows.append(read(record))
        except RowError as error:
            rejections.append(Rejection(record.file, record.line, *error.args))
    return rows, rejections


def _pair(record: Record) -> Pair:
    if record.fault:
        raise RowError("(row)", record.fault)
    for name in COLUMNS:
        if record.fields.get(name) in (None, "", []):
            raise RowError(name, "missing" if name not in record.fields else f"{record.fields[name]!r}")
    chosen, rejected = (read_conversation(record.fields[name], name) for name in COLUMNS)
    if record.fields.get("prompt") is None:
        conversation, replies = _split_prompt(chosen, rejected)
    else:
        conversation = read_conversation(record.fields["prompt"], "prompt")
        replies = (
            _only_reply(record.fields["chosen"], chosen, conversation, "chosen"),
            _only_reply(record.fields["rejected"], rejected, conversation, "rejected"),
        )
    if not conversation.turns:
        raise RowError("prompt", "no turn before the reply")
    for name, reply in zip(COLUMNS, replies, strict=True):
        if not reply.strip():
            raise RowError(name, "an empty reply")
    if replies[0].strip() == replies[1].strip():
        raise RowError("rejected", "identical to chosen")
    return Pair(conversation, *replies, _margin(record.fields.get("margin")), record.file, record.line)


def read_conversation(value: Any, name: str) -> Conversation:
    """Text or messages as a conversation. Raises RowError for anything else."""
    if isinstance(value, str):
        return from_transcript(value)
    if isinstance(value, list):
        try:
            return from_messages(value)
        except ValueError as error:
            raise RowError(name, str(error)) from None
    raise RowError(name, f"{type(value).__name__}; needed: text or messages")


def _only_reply(value: Any, side: Conversation, prompt: Conversation, name: str) -> str:
    """The reply of a row that has a prompt column: plain text, one message, or the prompt's messages and one more."""
    if isinstance(value, str):
        return value.strip()
    if side.turns[:-1] == prompt.turns and side.turns[-1].speaker == "bot" and side.persona in ("", prompt.persona):
        return side.turns[-1].text
    if len(side.turns) != 1 or side.turns[0].speaker != "bot" or side.persona:
        roles = ", ".join(str(message["role"]) for message in value)
        raise RowError(name, f"messages by {roles}; needed: one assistant message beside a prompt")
    return side.turns[0].text


def _split_prompt(chosen: Conversation, rejected: Conversation) -> tuple[Conversation, tuple[str, str]]:
    """What both sides share, and the last bot turn of each."""
    shared = 0
    for a, b in zip(chosen.turns, rejected.turns, strict=False):
        if a != b:
            break
        shared += 1
    if chosen == rejected:
        raise RowError("rejected", "identical to chosen")
    for name, side in zip(COLUMNS, (chosen, rejected), strict=True):
        rest = side.turns[shared:]
        if not rest:
            raise RowError(name, "an empty reply")
        if len(rest) != 1 or rest[0].speaker != "bot":
            speakers = ", ".join(turn.speaker for turn in rest)
            raise RowError(name, f"after the {shared} turns that both share: {speakers}; needed: one bot turn")
    if chosen.persona != rejected.persona:
        raise RowError("rejected", "another persona (system message) than chosen's")
    conversation = Conversation(chosen.turns[:shared], chosen.persona)
    return conversation, (chosen.turns[shared].text, rejected.turns[shared].text)


def _margin(value: Any) -> float:
    if value is None:
        return 0.0
    try:  # a CSV's numbers come as text
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RowError("margin", f"{value!r}; needed: a finite number")
    return number


def _refuse_duplicate(pair: Pair, seen: dict) -> None:
    key = (pair.conversation, pair.chosen, pair.rejected)
    reverse = (pair.conversation, pair.rejected, pair.chosen)
    if key in seen:
        raise RowError("(row)", f"duplicate of line {seen[key]}")
    if reverse in seen:
        raise RowError("(row)", f"conflicting duplicate: line {seen[reverse]} prefers the other reply")
    seen[key] = pair.line


def split_by_prompt(pairs: Sequence[P], eval_size: float, seed: int, noun: str = "pairs") -> tuple[list[P], list[P]]:
    """(train, eval) with no prompt on both sides; `eval_size` is a share below 1 or a number of pairs.

    Prompts are drawn by their seeded hash, so a row's side does not hang on the order of rows. Raises InputError
    where either side would be empty.
    """
    wanted = round(eval_size * len(pairs)) if eval_size < 1 else int(eval_size)
    if eval_size < 0 or wanted >= len(pairs):
        raise InputError(
            f"--eval_size {eval_size:g} asks for {wanted} of {len(pairs)} {noun}; needed: a share below 1, or a number "
            f"below {len(pairs)}"
        )
    groups: dict[str, list[P]] = {}
    for pair in pairs:
        groups.setdefault(pair.prompt_key, []).append(pair)
    order = sorted(groups, key=lambda key: hashlib.sha256(f"{seed}\0{key}".encode()).digest())
    chosen: set[str] = set()
    count = 0
    for key in order:
        if count >= wanted:
            break
        chosen.add(key)
        count += len(groups[key])
    if count == len(pairs) and wanted:
        raise InputError(
            f"the {len(pairs)} {noun} have {len(groups)} prompt(s): no split by prompt leaves both sides any"
        )
    return [p for p in pairs if p.prompt_key not in chosen], [p for p in pairs if p.prompt_key in chosen]


def without_prompts(pairs: Sequence[P], held_out: Sequence[P]) -> tuple[list[P], list[Rejection]]:
    """The pairs whose prompt does not occur in `held_out`, and the others as rejections."""
    keys = {pair.prompt_key for pair in held_out}
    kept = [pair for pair in pairs if pair.prompt_key not in keys]
    leaks = [
        Rejection(p.file, p.line, "prompt", "stands in the evaluation set too") for p in pairs if p.prompt_key in keys
    ]
    return kept, leaks


@dataclass(frozen=True)
class PairExample:
    """A tokenised pair: chosen is the first tail. `prompt` numbers the distinct prompts; lengths are of the replies."""

    replies: Replies
    margin: float
    prompt: int
    lengths: tuple[int, int]
    origin: str = ""
    """file:line of its row"""


def tokenize_pairs(pairs: Sequence[Pair], tokenizer, max_length: int) -> tuple[list[PairExample], list[Rejection]]:
    """Token ids of every pair whose replies fit whole; the others as rejections. Reply lengths are in tokens."""
    numbers: dict[str, int] = {}
    rows = tokenize_replies(
        tokenizer, [p.conversation for p in pairs], [(p.chosen, p.rejected) for p in pairs], max_length
    )
    words = (
        tokenizer([r for p in pairs for r in (p.chosen, p.rejected)], add_special_tokens=False).input_ids
        if pairs
        else []
    )
    examples, rejections = [], []
    for index, (pair, replies) in enumerate(zip(pairs, rows, strict=True)):
        lengths = (len(words[2 * index]), len(words[2 * index + 1]))
        if replies is None:
            found = f"a reply of {max(lengths)} tokens; with its turn's marks it exceeds max_length={max_length}"
            rejections.append(Rejection(pair.file, pair.line, COLUMNS[lengths[1] > lengths[0]], found))
            continue
        number = numbers.setdefault(pair.prompt_key, len(numbers))
        origin = f"{Path(pair.file).name}:{pair.line}"
        examples.append(PairExample(replies, pair.margin, number, lengths, origin))
    return examples, rejections


def fingerprint(*sides: Sequence[Prompted]) -> str:
    """sha256 over the rows in their order: what a run was trained and judged on."""
    digest = hashlib.sha256()
    for side in sides:
        for row in side:
            digest.update(json.dumps([row.prompt_key, *row.answers]).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def write_rejections(path: Path, rejections: Sequence[Rejection]) -> None:
    """One JSON object a row that was not used."""
    path.write_text("".join(json.dumps(asdict(r), ensure_ascii=False) + "\n" for r in rejections), encoding="utf-8")
