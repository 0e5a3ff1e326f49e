"""Raters' verdicts on pairs, in a folder that outlives its server: each is on the disk before the page goes on.

    FOLDER/labels.jsonl           rows for training, which lmgym/apps/serve/label_export.py writes
    FOLDER/record/pairs.jsonl     every pair that was ever served from this folder, with the places of its replies
    FOLDER/record/verdicts.jsonl  a line for each verdict, and for each one that was undone, in their order

A folder has one server at a time, by the lock of runs.
"""

import hashlib
import json
import os
import threading
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from lmgym.apps.serve.label_rows import LabelPair
from lmgym.data.rows import prompt_key
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.messages import from_messages
from lmgym.runs.files import sync, whole_lines, write_lines
from lmgym.runs.locks import FolderLock
from lmgym.runs.record import timestamp
from lmgym.text import Conversation, Reply, as_turn, messages

RECORD, PAIRS, VERDICTS = "record", "pairs.jsonl", "verdicts.jsonl"
SIDES = ("response_a", "response_b")
TIE, CANNOT_SAY, UNDONE = "tie", "cannot say", "undone"
FIRST, SECOND = "first", "second"
SAID = (FIRST, SECOND, TIE, CANNOT_SAY)
"""verdicts of the page, which does not know the sides"""
LONGEST_NAME = 60
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""of characters that reorder the text around them"""


@dataclass(frozen=True)
class StoredPair:
    """A pair as the folder keeps it: which reply is response_a stays, whatever the order of later rows."""

    id: str
    row: Mapping[str, Any]
    """prompt as messages, perhaps tools, and the replies: a text, or a list of one message with its thoughts"""
    sources: tuple[str, str]
    """FILE:LINE of each reply"""

    @cached_property
    def prompt_key(self) -> str:
        """Equal for prompts that differ only in case and white space: the unit of intervals."""
        return prompt_key(from_messages(self.row["prompt"]))

    def first_shown(self, rater: str) -> str:
        """The side that a rater sees first: random over raters and pairs, and the same after a reload."""
        return SIDES[hashlib.sha256(f"{rater}\0{self.id}".encode()).digest()[0] % 2]


@dataclass(frozen=True)
class Vote:
    """A rater's verdict on a pair: a side, TIE or CANNOT_SAY; and the side that was shown first."""

    verdict: str
    first: str


@dataclass
class Rater:
    """A person by a name; `number`, from 1, is by the order of first verdicts and names the column of labels.jsonl."""

    name: str
    number: int
    judged: list[str] = field(default_factory=list)
    """ids of pairs, the latest last"""
    undone: int = 0


def read_name(name: str) -> str:
    """A rater's name without superfluous blanks. Raises InputError for one that cannot be shown or told apart."""
    found = " ".join(unicodedata.normalize("NFC", name).split())
    if not found:
        raise InputError("the name is empty; needed: your name, or any word that tells you from the other raters")
    if len(found) > LONGEST_NAME:
        raise InputError(f"the name has {len(found):,} characters; needed: at most {LONGEST_NAME}")
    if any(unicodedata.category(c) in ("Cc", "Cs") or unicodedata.bidirectional(c) in DIRECTIONS for c in found):
        raise InputError(f"the name is {shown(found)}; needed: characters that can be seen")
    return found


def key_of(name: str) -> str:
    """Equal for names that differ in capitals alone, which are one rater's."""
    return unicodedata.normalize("NFKC", name).casefold()


class AlreadyJudged(Exception):
    """A verdict on a pair on which its rater has given another one, as in a second tab."""


@final
class LabelRecord:
    """The pairs, raters and votes of a folder. Methods may be called by several threads."""

    def __init__(self, folder: Path, pairs: Sequence[LabelPair]) -> None:
        """Takes the folder's lock and reads what it has.

        Raises RunStopped if another server has the folder, InputError for files that cannot be read or written.
        """
        self.folder, self.notes = folder, list[str]()
        self.raters: dict[str, Rater] = {}
        self.votes: dict[str, dict[str, Vote]] = {}
        """by pair, by rater's key"""
        self.lock = threading.RLock()
        self._folder_lock = FolderLock(folder)
        try:
            (folder / RECORD).mkdir(exist_ok=True)
            self.pairs = self._store(pairs)
            """every pair of the folder by its id"""
            self.served = {pair.id: self.pairs[pair.id] for pair in pairs}
            """those of the rows that the server was given"""
            self._read_verdicts()
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            sync(folder / RECORD)
        except OSError as error:
            self._folder_lock.release()
            cause = error.strerror or str(error)
            raise InputError(f"{shown_path(folder)}: {cause}; needed: a folder that can be written") from error
        except BaseException:
            self._folder_lock.release()
            raise

    def close(self) -> None:
        """Gives the folder free."""
        os.close(self._file)
        self._folder_lock.release()

    def next_pair(self, rater: str) -> StoredPair | None:
        """The first pair that a rater, by key, has not judged; None when all are."""
        return next((pair for id, pair in self.served.items() if rater not in self.votes.get(id, ())), None)

    def judge(self, name: str, pair: str, said: str) -> None:
        """Records one of SAID, and returns when it is on the disk.

        A verdict that is there already is not recorded twice. Raises InputError for an unknown pair, AlreadyJudged, and
        OSError, after which nothing has changed.
        """
        with self.lock:
            key, stored = key_of(name), self._find(pair)
            first = stored.first_shown(key)
            second = SIDES[first == SIDES[0]]
            vote = Vote({FIRST: first, SECOND: second}.get(said, said), first)
            if (given := self.votes.get(pair, {}).get(key)) is not None:
                if given == vote:
                    return
                raise AlreadyJudged
            self._append(name, pair, vote.verdict, first)

    def undo(self, name: str, pair: str) -> None:
        """Takes back the rater's latest verdict, which has to be on this pair.

        Raises AlreadyJudged if it is not, OSError as `judge` does.
        """
        with self.lock:
            rater = self.raters.get(key_of(name))
            if rater is None or not rater.judged or rater.judged[-1] != pair:
                raise AlreadyJudged
            self._append(name, pair, UNDONE, self.votes[pair][key_of(name)].first)

    def _find(self, pair: str) -> StoredPair:
        if pair not in self.pairs:
            raise InputError("there is no such pair; reload the page")
        return self.pairs[pair]

    @property
    def _path(self) -> Path:
        return self.folder / RECORD / VERDICTS

    def _append(self, name: str, pair: str, verdict: str, first: str) -> None:
        line = {"at": timestamp(), "rater": name, "pair": pair, "verdict": verdict, "shown_first": first}
        content = (json.dumps(line, ensure_ascii=False) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, content) < len(content):
                raise OSError("only a part was written")
            os.fsync(self._file)
        except OSError:
            os.truncate(self._path, size)  # half a line would join the next one
            raise
        self._apply(line)

    def _apply(self, line: Mapping[str, str]) -> None:
        """A line of the file. Raises KeyError, TypeError or ValueError for one that says nothing."""
        name, pair, verdict, first = (line[key] for key in ("rater", "pair", "verdict", "shown_first"))
        if verdict not in (*SIDES, TIE, CANNOT_SAY, UNDONE) or first not in SIDES:
            raise ValueError(f"verdict {shown(verdict)}")
        key = key_of(name)
        if verdict == UNDONE:
            self.votes[pair].pop(key)
            self.raters[key].judged.remove(pair)
            self.raters[key].undone += 1
            return
        rater = self.raters.setdefault(key, Rater(name, len(self.raters) + 1))
        self.votes.setdefault(pair, {})[key] = Vote(verdict, first)
        rater.judged.append(pair)

    def _read_verdicts(self) -> None:
        whole, cut = whole_lines(self._path)
        if cut:
            self.notes.append(
                f"{shown_path(self._path)}: its last line was half written ({cut:,} bytes), and is cut off"
            )
        for number, line in enumerate(whole, 1):
            try:
                self._apply(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _damaged(self._path, number, error) from error
        if votes := sum(map(len, self.votes.values())):
            raters = len(self.raters)
            self.notes.append(f"{votes:,} verdicts of {raters:,} rater{'s' * (raters != 1)} are in {self.folder}")
        if lost := sum(len(votes) for pair, votes in self.votes.items() if pair not in self.pairs):
            self.notes.append(f"{lost:,} of them are on pairs that {PAIRS} does not have: labels.jsonl leaves them out")

    def _store(self, pairs: Sequence[LabelPair]) -> dict[str, StoredPair]:
        """The folder's pairs with new ones behind them, which are written."""
        path, known = self.folder / RECORD / PAIRS, dict[str, StoredPair]()
        for number, line in enumerate(whole_lines(path)[0], 1):
            try:
                row = json.loads(line)
                sources = row.pop("source_a"), row.pop("source_b")
                pair = StoredPair(row.pop("pair"), {name: row[name] for name in ("prompt", *SIDES)} | row, sources)
                known[pair.id] = pair
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _damaged(path, number, error) from error
        new = [_stored(pair) for pair in pairs if pair.id not in known]
        if (others := len(known) - len(pairs) + len(new)) > 0:
            self.notes.append(
                f"{self.folder} also has {others:,} pairs of other rows, which are not shown; verdicts on them are in "
                "labels.jsonl too"
            )
        known |= {pair.id: pair for pair in new}
        if new:
            write_lines(path, map(_line, known.values()))
        return known


def _line(pair: StoredPair) -> dict[str, Any]:
    return {"pair": pair.id, **pair.row, "source_a": pair.sources[0], "source_b": pair.sources[1]}


def _stored(pair: LabelPair) -> StoredPair:
    conversation: Conversation = pair.conversation
    row: dict[str, Any] = {"prompt": messages(conversation)}
    if conversation.tools:
        row["tools"] = json.loads(conversation.tools)
    row |= {name: _said(one.reply) for name, one in zip(SIDES, (pair.first, pair.second), strict=True)}
    sources = (f"{pair.first.file}:{pair.first.line}", f"{pair.second.file}:{pair.second.line}")
    return StoredPair(pair.id, row, sources)


def _said(reply: Reply) -> Any:
    return reply if isinstance(reply, str) else messages(Conversation((as_turn(reply),)))


def _damaged(path: Path, number: int, error: Exception) -> InputError:
    return InputError(
        f"{shown_path(path)}, line {number:,}, is damaged ({one_line(str(error))}); take the line out, or name another "
        "--output"
    )
