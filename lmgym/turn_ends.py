"""Where a bot's turn ends, derived from what the chat template writes: for sampling, training, averages and scorers.

Design decisions:
- Probed chats are rendered, and the first added token behind the bot's words ends its turn: in the last turn, in one
  before a user's, and behind a call of a tool. So there can be several (Llama 3.1 has two).
- What also stands within a turn, between a thought and the reply or between two calls, ends none: generation would
  stop in its midst.
- A template that writes no such token before the next turn (`USER: ... ASSISTANT: ...`) has a text that does, which
  is a stop string. The tokenizer's eos always ends a turn too.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from lmgym.aids import aid
from lmgym.errors import shown
from lmgym.templates import apply_template, once_a_template
from lmgym.text import REASONING, flat_template_note

END_OF_TURN = "end of turn"
"""`reads` in the scorer.json of scorers whose score is read there; without it at the end of the whole text"""
QUESTION, ANSWERS, NEXT = "probed question", ("probed answer", "42", "Two lines:\n\n- probed end"), "probed reply"
THOUGHT, ARGUMENT, RESULT = "probed thought", "probed argument", "probed result"


@dataclass(frozen=True)
class TurnEnds:
    """The ends of a bot's turn: tokens and texts."""

    ids: tuple[int, ...]
    """any of these tokens; first the one that training puts behind a reply; empty without a template's and an eos"""
    tokens: tuple[str, ...]
    """their texts"""
    stops: tuple[str, ...] = ()
    """where the template has no token for it: what it writes between a reply and the next turn"""
    in_template: bool = True
    """False if the template writes no token of `ids`"""

    def body(self, ids: list[int]) -> list[int]:
        """The ids before the first that ends a turn."""
        return ids[: self._first(ids)]

    def up_to(self, ids: list[int]) -> list[int]:
        """The ids up to the first that ends a turn, which is the last of them."""
        return ids[: self._first(ids) + 1]

    def end_of(self, ids: list[int]) -> int:
        """The first id that ends a turn, or the one that training puts there."""
        first = self._first(ids)
        return ids[first] if first < len(ids) else self.ids[0]

    def text_before(self, text: str) -> str:
        """The text before the first token that ends a turn."""
        return text[: min((at for token in self.tokens if (at := text.find(token)) >= 0), default=len(text))]

    def token_in(self, text: str) -> str:
        """A token of a text that would end the turn; empty if there is none."""
        return next((token for token in self.tokens if token in text), "")

    def _first(self, ids: list[int]) -> int:
        first = len(ids)
        for end in self.ids:
            with suppress(ValueError):
                first = ids.index(end, 0, first)
        return first


def turn_end_notes(tokenizer) -> list[str]:
    """A line if turns do not end with the tokenizer's eos alone."""
    ends, name, eos = turn_ends(tokenizer), tokenizer.name_or_path, tokenizer.eos_token
    if not ends.ids:  # an encoder's
        return []
    if ends.in_template:
        others = " or ".join(token for token in ends.tokens if token != eos)
        return [f"a turn of {name} ends with {others}, by its chat template; its eos is {eos}"] if others else []
    before = f"; generation stops before {shown(ends.stops[0])}, too, where the next turn begins" if ends.stops else ""
    return [f"the chat template of {name} writes no token where a turn ends: a reply ends with its eos, {eos}{before}"]


@aid("the notes on the chat template", list)
def template_notes(tokenizer) -> list[str]:
    """Lines on the format of chats and on the ends of turns, where they are not the usual ones."""
    return [*flat_template_note(tokenizer), *turn_end_notes(tokenizer)]


@once_a_template
def turn_ends(tokenizer) -> TurnEnds:
    """The ends of a tokenizer's turns; without a chat template its eos."""
    if getattr(tokenizer, "chat_template", None) is None:
        has_eos = tokenizer.eos_token_id is not None
        return TurnEnds((tokenizer.eos_token_id,), (tokenizer.eos_token,)) if has_eos else TurnEnds((), ())
    marks = _marks(tokenizer)
    pattern = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or r"(?!)")

    def marks_in(*texts: str | None) -> list[str]:
        return [mark for text in texts for mark in pattern.findall(text or "")]

    call, result = _bot("", ARGUMENT), {"role": "tool", "name": "probe", "tool_call_id": "probe0000", "content": RESULT}
    thought = _bot(ANSWERS[0]) | dict.fromkeys(REASONING, THOUGHT)
    within = marks_in(
        _between(tokenizer, [_user(QUESTION), thought], THOUGHT, ANSWERS[0]),
        _between(tokenizer, [_user(QUESTION), _bot("", ARGUMENT, NEXT)], ARGUMENT, NEXT),
    )
    last = [_between(tokenizer, [_user(QUESTION), _bot(answer)], answer) for answer in ANSWERS]
    gaps = [
        _between(tokenizer, [_user(QUESTION), _bot(answer), _user(NEXT), _bot(NEXT)], answer, NEXT)
        for answer in ANSWERS
    ]
    called = [
        _between(tokenizer, [_user(QUESTION), call], ARGUMENT),
        _between(tokenizer, [_user(QUESTION), call, result], ARGUMENT, RESULT),
    ]
    firsts = ([mark for mark in marks_in(text) if mark not in within][:1] for text in (*last, *gaps, *called))
    tokens = list(dict.fromkeys(mark for mark in chain.from_iterable(firsts)))
    own = bool(tokens)
    if tokenizer.eos_token is not None and tokenizer.eos_token not in tokens:
        tokens.append(tokenizer.eos_token)
    marks = {tokenizer.eos_token: tokenizer.eos_token_id} | marks
    stop = "" if own else (gaps[0] or "").strip()
    return TurnEnds(tuple(marks[t] for t in tokens), tuple(tokens), (stop,) if stop else (), own)


def _marks(tokenizer) -> dict[str, int]:
    """Added tokens that are no blanks, and special ones, by their texts; not the one that begins a text."""
    added = {str(token): id_ for id_, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    added |= dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    begins = None if tokenizer.bos_token == tokenizer.eos_token else tokenizer.bos_token
    return {text: id_ for text, id_ in added.items() if text.strip() and text != begins}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _bot(text: str, *arguments: str) -> dict[str, Any]:
    calls = [
        {"type": "function", "id": f"probe{i:04}", "function": {"name": "probe", "arguments": {"text": argument}}}
        for i, argument in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {})


def _between(tokenizer, rows: list[dict[str, Any]], first: str, second: str | None = None) -> str | None:
    """The template's text behind one text and before another, or the end; None if it refuses or changes them."""
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = {"name": "probe", "description": "Probes.", "parameters": parameters}
    has_calls = any("tool_calls" in row for row in rows)
    try:
        text = apply_template(tokenizer, rows, [{"type": "function", "function": tool}] if has_calls else None)
    except Exception:  # some refuse tools, or a last turn of the bot
        return None
    _, found, rest = text.partition(first) if second else text.rpartition(first)
    if not found:
        return None
    return rest if second is None else rest[: rest.index(second)] if second in rest else None
