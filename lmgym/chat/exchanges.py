"""One line of a person, the candidates that answer it, and what was decided: the unit of a session and of its file.

`explain` compares each scorer's score of a candidate with that of an empty reply.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from types import NoneType
from typing import Any

from lmgym.scoring.protocol import Scorer
from lmgym.scoring.ranking import ranks, score_replies
from lmgym.text import Conversation, Turn, from_messages, messages

HUMAN_WORDS = ("written", "tie", "rejected")


@dataclass(frozen=True)
class Candidate:
    """One reply with every scorer's opinion, None of a scorer that failed."""

    text: str
    tokens: int
    finish_reason: str
    seed: int
    scores: dict[str, float | None] = field(default_factory=dict, repr=False)  # a blind person may look at a list


@dataclass
class Exchange:
    """A turn of a session. `prompt` ends with the person's line; indices count candidates from 0."""

    id: int
    parent: int | None
    prompt: Conversation
    candidates: list[Candidate]
    seed: int
    sampling: dict[str, Any]
    selected: int | None = None
    """by the scorers; None while a blind person has not decided"""
    selected_by: str = ""
    human_pick: int | str | None = None
    """a candidate, or one of HUMAN_WORDS"""
    edited_text: str | None = None
    tied: list[int] = field(default_factory=list)
    scores_visible: bool = True
    """whether scores were on the screen when the person decided"""
    dropped_turns: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def user(self) -> str:
        """The person's line."""
        return self.prompt.turns[-1].text

    @property
    def is_open(self) -> bool:
        """Whether a blind person has yet to decide: until then nothing may show scores or the scorers' choice."""
        return self.selected is None

    @property
    def chosen(self) -> int | None:
        """The candidate that was said; None while open, or where the person wrote another."""
        if self.is_open or self.edited_text is not None:
            return None
        return self.human_pick if isinstance(self.human_pick, int) else self.selected

    @property
    def reply(self) -> str | None:
        """What the bot said in the end; None while open."""
        if self.edited_text is not None:
            return self.edited_text
        return None if self.chosen is None else self.candidates[self.chosen].text

    @property
    def conversation(self) -> Conversation:
        """The prompt with the reply."""
        assert self.reply is not None, "an open turn has no reply yet"
        return Conversation((*self.prompt.turns, Turn("bot", self.reply)), self.prompt.persona)

    @property
    def names(self) -> list[str]:
        """Of the scorers that were asked."""
        return list(self.candidates[0].scores) if self.candidates else []

    def column(self, name: str) -> list[float | None]:
        """A scorer's scores, a candidate each."""
        return [candidate.scores.get(name) for candidate in self.candidates]

    @property
    def columns(self) -> dict[str, list[float | None]]:
        """All scorers' scores."""
        return {name: self.column(name) for name in self.names}

    @property
    def df(self):
        """A pandas DataFrame, a row a candidate, numbered as on the screen. While open it has no scores.

        Texts are cleaned for the terminal that shows it; `candidates` has them as they are.
        """
        import pandas as pd

        from lmgym.console import clean

        rows: dict[str, list] = {"text": [clean(c.text) for c in self.candidates]}
        if not self.is_open:
            columns = self.columns
            rows |= columns | {f"rank_{name}": ranks(column) for name, column in columns.items()}
            rows["chosen"] = [i == self.chosen for i in range(len(self.candidates))]
        rows["tokens"] = [c.tokens for c in self.candidates]
        rows["finish_reason"] = [c.finish_reason for c in self.candidates]
        return pd.DataFrame(rows, index=pd.RangeIndex(1, len(self.candidates) + 1, name="reply"))

    def __repr__(self) -> str:
        """Short, and blind while the person is."""
        said = "open" if self.is_open else repr(self.reply)
        return f"<turn {self.id}: {self.user!r} -> {said}; {len(self.candidates)} candidates, see .df>"


def to_record(exchange: Exchange, before: Conversation) -> dict[str, Any]:
    """As a line of a session's file says it. While open it has no scores there either: a file can be read beside.

    `before` is what the tree of turns says was said before it: of the prompt the line has only what is new, the user's
    line and, where it is another than before, the persona, with a digest of the rest, since lines may break; all of it
    where the tree does not say it.
    """
    hidden: dict[str, Any] = {"scores": {}} if exchange.is_open else {}
    prompt: dict[str, Any] = {}
    if exchange.prompt.turns != (*before.turns, Turn("user", exchange.user)):
        prompt = {"prompt": messages(exchange.prompt)}
    else:
        persona = exchange.prompt.persona
        prompt = {"before": digest(before)} | ({"persona": persona} if persona != before.persona else {})
    return {
        "turn": exchange.id,
        "parent": exchange.parent,
        **prompt,
        "user": exchange.user,
        "reply": exchange.reply,
        "candidates": [{**vars(candidate), **hidden} for candidate in exchange.candidates],
        "selected": exchange.selected,
        "selected_by": exchange.selected_by,
        "human_pick": exchange.human_pick,
        "edited_text": exchange.edited_text,
        "tied": exchange.tied,
        "scores_visible": exchange.scores_visible,
        "seed": exchange.seed,
        "sampling": exchange.sampling,
        "dropped_turns": exchange.dropped_turns,
        "failed": exchange.failed,
    }


FIELDS: dict[str, tuple[type, ...]] = {
    "turn": (int,), "parent": (int, NoneType), "candidates": (list,), "seed": (int,),
    "sampling": (dict,), "selected": (int, NoneType), "selected_by": (str,), "human_pick": (int, str, NoneType),
    "edited_text": (str, NoneType), "tied": (list,), "scores_visible": (bool,), "dropped_turns": (int,),
    "failed": (dict,),
}  # fmt: skip
CANDIDATE_FIELDS: dict[str, tuple[type, ...]] = {
    "text": (str,), "tokens": (int,), "finish_reason": (str,), "seed": (int,), "scores": (dict,),
}  # fmt: skip


def from_record(row: dict[str, Any], before: Conversation) -> Exchange:
    """What `to_record` wrote, now or in former versions, which wrote the whole prompt each time; `before` as there.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    fields = _typed(row, FIELDS)
    candidates = [Candidate(**_typed(candidate, CANDIDATE_FIELDS)) for candidate in fields["candidates"]]
    fields |= {"id": fields.pop("turn"), "prompt": _prompt(row, before), "candidates": candidates}
    exchange = Exchange(**fields)
    _refuse_nonsense(exchange)
    return exchange


def digest(said: Conversation) -> str:
    """Sixteen letters that tell whether two conversations are the same."""
    return blake2b(json.dumps(messages(said)).encode(), digest_size=8).hexdigest()


def _prompt(row: dict[str, Any], before: Conversation) -> Conversation:
    if "prompt" in row:
        return from_messages(_typed(row, {"prompt": (list,)})["prompt"])
    said = _typed({"persona": before.persona, **row}, {"user": (str,), "persona": (str,)})
    return Conversation((*before.turns, Turn("user", said["user"])), said["persona"])


def _typed(row: dict[str, Any], types: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """Those fields, each of one of its types exactly: true is no 1."""
    for name, allowed in types.items():
        if type(row[name]) not in allowed:
            raise TypeError(f"{name} is {type(row[name]).__name__}")
    return {name: row[name] for name in types}


def _refuse_nonsense(exchange: Exchange) -> None:
    """Raises TypeError or ValueError for what would fail, loop or drive the screen later."""
    prompt, candidates, picked = exchange.prompt.turns, exchange.candidates, exchange.human_pick
    if not (prompt and prompt[-1].speaker == "user" and candidates):
        raise ValueError("a turn answers a line of the user, with one candidate at least")
    if not exchange.id > (exchange.parent or 0):
        raise ValueError("a turn comes after the one that it follows")
    if isinstance(picked, str) and picked not in HUMAN_WORDS:
        raise ValueError(f"human_pick is none of {', '.join(HUMAN_WORDS)}")
    places = [place for place in (exchange.selected, picked) if place is not None and place not in HUMAN_WORDS]
    if not all(type(place) is int and 0 <= place < len(candidates) for place in [*places, *exchange.tied]):
        raise ValueError("it names candidates that it does not have")
    scores = [score for candidate in candidates for score in candidate.scores.values()]
    if not all(score is None or math.isfinite(score) for score in scores):
        raise ValueError("a score is a finite number, or null")


@dataclass(frozen=True)
class Why:
    """One scorer's view of one reply. `seen` has text, tokens and cut where the scorer tells them."""

    name: str
    score: float | None
    empty: float | None
    failed: str
    seen: Any

    @property
    def change(self) -> float | None:
        """What the reply adds to an empty one."""
        return None if self.score is None or self.empty is None else self.score - self.empty


def explain(judges: Mapping[str, Scorer], exchange: Exchange, place: int) -> list[Why]:
    """Each scorer's score of a candidate and of an empty reply in its place."""
    reply = exchange.candidates[place].text
    opinions = score_replies(judges, exchange.prompt, [reply, ""])
    rows = []
    for name, judge in judges.items():
        score, empty = opinions.scores[name]
        shown = None
        if hasattr(judge, "seen") and name not in opinions.failed:
            shown = judge.seen(exchange.prompt, reply, [c.text for c in exchange.candidates])
        rows.append(Why(name, score, empty, opinions.failed.get(name, ""), shown))
    return rows
