"""An exchange: the user's message, the candidate replies and the decision; the unit of a session."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lmgym.errors import InputError, shown
from lmgym.generation.context_fitting import reply_within
from lmgym.generation.protocol import Generator, Progress, Sampling
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.ranking import ranks, score_replies
from lmgym.text import REASONING, Conversation, Turn, messages

MOST_REPLIES = 1024
HUMAN_DECISIONS = ("written", "tie", "rejected")


@dataclass(frozen=True)
class Candidate:
    """One reply with its score by each scorer, None for a scorer that failed."""

    text: str
    tokens: int
    finish_reason: str
    seed: int
    scores: dict[str, float | None] = field(default_factory=dict, repr=False)  # hidden in blind mode
    policy: str = field(default="", repr=False)
    """who wrote it, where several policies reply to a message; hidden like the scores"""
    thought: str = field(default="", repr=False)
    """what a model that thinks wrote to itself before its answer, which `text` is then: scorers and later turns see the
    answer alone; hidden like the scores"""

    @property
    def message(self) -> dict[str, str]:
        """The reply as a message, with its thought under the name that servers give it."""
        thought = {REASONING[0]: self.thought} if self.thought else {}
        return {"role": "assistant", "content": self.text.strip(), **thought}


@dataclass
class Exchange:
    """A turn of a session. `prompt` ends with the user's message; candidates are numbered from 0."""

    id: int
    parent: int | None
    prompt: Conversation
    candidates: list[Candidate]
    seed: int
    sampling: dict[str, Any]
    selected: int | None = None
    """by the scorers; None while a blind choice is open"""
    selected_by: str = ""
    human_pick: int | str | None = None
    """a candidate, or one of HUMAN_DECISIONS"""
    edited_text: str | None = None
    tied: list[int] = field(default_factory=list)
    scores_visible: bool = True
    """False if the user decided without seeing the scores"""
    dropped_turns: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list, repr=False, compare=False)

    @property
    def user(self) -> str:
        """The user's message."""
        return self.prompt.turns[-1].text

    @property
    def is_open(self) -> bool:
        """True until a blind choice is made; while it is open, nothing may show scores or the scorers' choice."""
        return self.selected is None

    @property
    def chosen(self) -> int | None:
        """The candidate that is the bot's reply; None while open, or if the user wrote the reply."""
        if self.is_open or self.edited_text is not None:
            return None
        return self.human_pick if isinstance(self.human_pick, int) else self.selected

    @property
    def reply(self) -> str | None:
        """The bot's reply; None while open."""
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
        """Names of the scorers."""
        return list(self.candidates[0].scores) if self.candidates else []

    def column(self, name: str) -> list[float | None]:
        """A scorer's scores, one per candidate."""
        return [candidate.scores.get(name) for candidate in self.candidates]

    @property
    def columns(self) -> dict[str, list[float | None]]:
        """Each scorer's scores, by name."""
        return {name: self.column(name) for name in self.names}

    @property
    def df(self):
        """A pandas DataFrame with a row per candidate, numbered from 1. It has no scores while the exchange is open.

        Control characters in texts are replaced, so that a terminal can show it; `candidates` has the original texts.
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
        """A short form, without the reply while the exchange is open."""
        reply = "open" if self.is_open else repr(self.reply)
        return f"<turn {self.id}: {self.user!r} -> {reply}; {len(self.candidates)} candidates, see .df>"


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
            picked = None if exchange.chosen is None else exchange.candidates[exchange.chosen].message
            row = {
                "prompt": messages(exchange.prompt),
                "chosen": [picked or {"role": "assistant", "content": chosen}],
                "rejected": [other.message],
                "group": group,
                "turn": exchange.id,
                "scores_visible": exchange.scores_visible,
            }
            rows[json.dumps([row["prompt"], *sorted((chosen, rejected))])] = row
    return list(rows.values())


@dataclass(frozen=True)
class ScoreExplanation:
    """A scorer's scores of a reply and of an empty one. `seen` is the scorer's input, if it can show it."""

    name: str
    score: float | None
    empty: float | None
    failed: str
    seen: Any

    @property
    def change(self) -> float | None:
        """The score minus that of an empty reply."""
        return None if self.score is None or self.empty is None else self.score - self.empty


def explain(judges: Mapping[str, Scorer], exchange: Exchange, place: int) -> list[ScoreExplanation]:
    """Each scorer's score of a candidate, compared with that of an empty reply."""
    reply = exchange.candidates[place].text
    opinions = score_replies(judges, exchange.prompt, [reply, ""])
    rows = []
    for name, judge in judges.items():
        score, empty = opinions.scores[name]
        seen = None
        if hasattr(judge, "seen") and name not in opinions.failed:
            seen = judge.seen(exchange.prompt, reply, [c.text for c in exchange.candidates])
        rows.append(ScoreExplanation(name, score, empty, opinions.failed.get(name, ""), seen))
    return rows


def readable(text: str) -> str:
    """Text without lone surrogates, which no tokenizer and no file takes, and without surrounding white space."""
    return text.encode("utf-8", "replace").decode("utf-8").strip()


def check_count(n: int, name: str = "best_of") -> int:
    """The number of replies. Raises InputError if it is out of bounds."""
    if not 1 <= n <= MOST_REPLIES:
        raise InputError(f"{name}={shown(n)}: needed 1 to {MOST_REPLIES:,} replies")
    return n


def as_json(sampling: Sampling) -> dict[str, Any]:
    """The settings as JSON reads them back."""
    return {**asdict(sampling), "stop": list(sampling.stop)}


def generate_candidates(
    generator: Generator, prompt: Conversation, n: int, sampling: Sampling, seed: int, progress: Progress | None
) -> tuple[list[Candidate], int, list[str]]:
    """(n candidates, how many of the oldest turns were left out, notes for the user on what was left out)."""
    completions, dropped, shortened = reply_within(generator, prompt, n, replace(sampling, seed=seed), progress)
    if len(completions) != n:
        raise ValueError(f"{len(completions)} replies came; asked for {n}")
    notes = []
    if dropped:
        notes.append(f"the {dropped} oldest turns were left out: the conversation is too long for the model")
    if shortened:
        notes.append(
            f"at least the first {shortened:,} tokens of your message were left out: it is too long for the model"
        )
    names = list(getattr(generator, "policies", ())) or [""]  # of one that asks several in turn
    candidates = [
        Candidate(
            readable(c.answer),
            c.tokens,
            c.finish_reason,
            seed,
            policy=names[i % len(names)],
            thought=readable(c.thought),
        )
        for i, c in enumerate(completions)
    ]
    return candidates, dropped, notes
