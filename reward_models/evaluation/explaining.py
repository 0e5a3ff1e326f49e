"""Why a scorer says what it says of a reply: its score against no reply at all, and the text that it saw."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reward_models.evaluation.exchanges import Exchange
from reward_models.evaluation.judging import Judge, ask


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


def explain(judges: Mapping[str, Judge], exchange: Exchange, place: int) -> list[Why]:
    """Each scorer's score of a candidate and of an empty reply in its place."""
    reply = exchange.candidates[place].text
    opinions = ask(judges, exchange.prompt, [reply, ""])
    rows = []
    for name, judge in judges.items():
        score, empty = opinions.scores[name]
        shown = None
        if hasattr(judge, "seen") and name not in opinions.failed:
            shown = judge.seen(exchange.prompt, reply, [c.text for c in exchange.candidates])
        rows.append(Why(name, score, empty, opinions.failed.get(name, ""), shown))
    return rows
