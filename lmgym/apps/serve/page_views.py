"""Sessions as the page receives them. While a blind choice is open, nothing here tells scores, order or policies."""

from typing import Any

from lmgym.apps.chat.exchanges import Exchange, explain
from lmgym.apps.chat.session import ChatSession
from lmgym.scoring.ranking import ranks, standardise

MOST_OTHERS = 200
"""turns on other branches that the page lists: the latest"""
LONGEST_LABEL = 120
"""characters of a message that stands for a turn in a list"""
LONGEST_SEEN = 20_000
"""characters of a scorer's input that the page shows: the last"""


def session_view(session: ChatSession) -> dict[str, Any]:
    """The conversation on the current branch, its last exchange, and the turns on other branches."""
    path = session.history
    on_path = {exchange.id for exchange in path}
    others = [exchange for number, exchange in session.exchanges.items() if number not in on_path]
    opening = session.opening if session.head is None else path[0].prompt.turns[:-1]
    return {
        "opening": [{"speaker": turn.speaker, "text": turn.text} for turn in opening],
        "history": [{"turn": e.id, "user": e.user, "reply": e.reply, "decision": _decision(e)} for e in path],
        "exchange": exchange_view(path[-1]) if path else None,
        "others": [{"turn": e.id, "user": e.user[:LONGEST_LABEL]} for e in others[-MOST_OTHERS:]],
        "blind": session.blind,
        "decided": sum(exchange.human_pick is not None for exchange in session.exchanges.values()),
    }


def exchange_view(exchange: Exchange) -> dict[str, Any]:
    """An exchange with its candidates, each with every scorer's score, rank and z-score unless it is open."""
    columns = {} if exchange.is_open else exchange.columns
    views = {name: list(zip(c, ranks(c), standardise(c), strict=True)) for name, c in columns.items()}
    candidates = []
    for i, candidate in enumerate(exchange.candidates):
        row: dict[str, Any] = {"number": i + 1, "text": candidate.text}
        if not exchange.is_open:
            scores = {name: dict(zip(("score", "rank", "z"), view[i], strict=True)) for name, view in views.items()}
            cut = candidate.finish_reason == "length"
            row |= {"scores": scores, "tokens": candidate.tokens, "cut": cut, "policy": candidate.policy}
            row |= {"thought": candidate.thought} if candidate.thought else {}
        candidates.append(row)
    return {
        "turn": exchange.id,
        "open": exchange.is_open,
        "candidates": candidates,
        "scorers": list(columns),
        "chosen": None if exchange.chosen is None else exchange.chosen + 1,
        "selected": None if exchange.selected is None else exchange.selected + 1,
        "selected_by": exchange.selected_by,
        "decision": _decision(exchange),
        # without the terminal's commands, as in `NOT RECORDED: ...; %save PATH elsewhere`
        "notes": [] if exchange.is_open else [note.partition("; %")[0] for note in exchange.notes],
    }


def why_view(session: ChatSession, number: int) -> dict[str, Any]:
    """The text that each scorer read of a candidate, and its score beside an empty reply's, as `%why` shows them."""
    session.refuse_open()
    place, exchange = session.place(number), session.last
    rows = []
    for row in explain(session.judges, exchange, place):
        seen: dict[str, Any] | None = None
        if row.seen is not None:
            text = row.seen.text[-LONGEST_SEEN:]
            seen = {
                "text": text,
                "tokens": row.seen.tokens,
                "cut": row.seen.cut,
                "whole": len(text) == len(row.seen.text),
            }
        scores = {"score": row.score, "empty": row.empty, "change": row.change}
        rows.append({"name": row.name, **scores, "failed": row.failed, "seen": seen})
    candidate = exchange.candidates[place]
    return {"number": number, "tokens": candidate.tokens, "finish_reason": candidate.finish_reason, "scorers": rows}


def _decision(exchange: Exchange) -> str | None:
    return "picked" if isinstance(exchange.human_pick, int) else exchange.human_pick
