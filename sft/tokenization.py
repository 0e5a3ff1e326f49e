"""Conversations as token ids, and the places whose next token carries loss: the tokens of outputs and of nothing else.

Design decisions:
- The ids of a context are those that generation is given, and the ids of an output are the rest of the text's
  (lmgym/data/tokenization.py), as in preference training and scoring.
- Each output's last target is the token that ends its turn (lmgym/turn_ends.py), even where the template writes none
  within a conversation: there the model stops when it generates. Nothing behind it is learned.
- A conversation is one row where its template only ever appends and every prompt's ids are a beginning of the row's.
  Where the template rewrites what came before (some drop earlier thoughts), each output is a row of its own, whose
  context is what generation is given there.
- A conversation longer than `max_length` becomes several rows, truncated as everywhere (data/truncation.py): the last
  outputs with the turns that fit before them, then, in a row of their own, the outputs that were left out there. Each
  output stands whole, once.
- Of a plain text every token is learned; one that is too long becomes several rows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmgym.data.rejections import EARLIER, UNFIT, Rejection
from lmgym.data.truncation import Truncated, rejection_of, reply_ids, start_at_turn, truncate
from lmgym.text import Conversation, Replies, as_reply, tokenize_texts
from lmgym.turn_ends import turn_ends
from sft.conversations import TrainingChat
from sft.layout import borders_of


@dataclass(frozen=True)
class Example:
    """A row of ids, and what is to be predicted at some of its places."""

    replies: Replies
    """one suffix: the ids"""
    spans: tuple[tuple[int, int], ...]
    """(first, end) of the outputs' ids"""
    ends: tuple[int, ...]
    """the last target of each output, behind its ids: the end of its turn"""
    prompt: Conversation
    """the conversation before the last output"""
    file: str
    line: int
    probabilities: list[float] | None = None
    """a teacher's, one a target"""

    @property
    def places(self) -> list[int]:
        """The logits at place t predict the target, which is mostly the token at t + 1."""
        return [place for first, end in self.spans for place in range(first - 1, end)]

    @property
    def targets(self) -> list[int]:
        """The ids of the outputs, with the end of each."""
        ids = self.ids
        return [id for (first, end), last in zip(self.spans, self.ends, strict=True) for id in (*ids[first:end], last)]

    @property
    def origin(self) -> str:
        """file:line of its conversation."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def ids(self) -> list[int]:
        """The input."""
        return self.replies.suffixes[0]


@dataclass(frozen=True)
class _Window:
    """Turns of a chat that are to be one row. `outputs` are places of its turns, of which the last ends it; of a
    teacher's row there is none, and the conversation is its prompt.
    """

    place: int
    """which chat"""
    conversation: Conversation
    outputs: tuple[int, ...]
    limit: int
    """tokens that truncation leaves of it"""
    dropped_turns: int = 0
    is_last: bool = True
    """its last output is the chat's"""


@dataclass(frozen=True)
class _Several:
    """A window with several outputs."""

    whole: _Window
    """before truncation"""
    left: _Window
    found: Truncated
    body: list[int]
    """ids of the last output"""
    borders: list[tuple[str, str]]
    """of the other outputs, see `borders_of`"""


def tokenize_chats(
    chats: Sequence[TrainingChat], tokenizer, max_length: int, numbers: dict[int, int] | None = None
) -> tuple[list[Example], list[Rejection]]:
    """Rows of every conversation whose outputs fit whole; what cannot be a row as rejections.

    Prompts have no `numbers`.
    """
    tokenization = _Tokenization(chats, tokenizer, max_length)
    while tokenization.queue:
        tokenization.round()
    return [row for rows in tokenization.rows for row in rows], tokenization.rejections


class _Tokenization:
    """Windows that are still to be tokenised, the rows that are done, and what is rejected."""

    def __init__(self, chats: Sequence[TrainingChat], tokenizer, max_length: int) -> None:
        self.chats, self.tokenizer, self.max_length = chats, tokenizer, max_length
        self.rows: list[list[Example]] = [[] for _ in chats]
        self.rejections: list[Rejection] = []
        self.queue: list[_Window] = []
        for place, chat in enumerate(chats):
            if chat.tokens and max(chat.tokens) >= len(tokenizer):
                found = f"token {max(chat.tokens)}; needed: ids below {len(tokenizer)}, of this tokenizer"
                self.rejections.append(Rejection(chat.file, chat.line, chat.field, found, UNFIT))
            elif chat.text:
                self.rows[place] = _rows_of_text(chat, tokenizer, max_length)
            else:
                limit = max_length - max(0, len(chat.tokens) - 1)
                self.queue.append(_window(place, chat.conversation, chat.outputs, limit))

    def round(self) -> None:
        """Empty the queue into rows; what truncation or the template leaves of a window is queued again."""
        windows, self.queue = self.queue, []
        fitted = self._fit(windows)
        several: list[_Several] = []
        for window, result in zip(windows, fitted, strict=True):
            bodies = self._bodies(window, result)
            if isinstance(result, str) or isinstance(bodies, str):
                self._refuse(window, bodies if isinstance(bodies, str) else "")
                continue
            left = _end_of(window, result)
            if len(left.outputs) < 2:
                self.queue += _rest(window, left)
                self._add(left, result, bodies[0])
            elif borders := borders_of(self.tokenizer, left.conversation, left.outputs):
                several.append(_Several(window, left, result, bodies[0], borders))
            else:
                self.queue += _apart(window)
        self._add_several(several)

    def _fit(self, windows: list[_Window]) -> list[Truncated | str]:
        """The truncated text of each window, or the reason why it cannot be truncated."""
        found: list[Truncated | str] = [""] * len(windows)
        for limit, taught in {(window.limit, not window.outputs) for window in windows}:
            group = [i for i, one in enumerate(windows) if (one.limit, not one.outputs) == (limit, taught)]
            chats = [windows[i].conversation for i in group]
            replies = None if taught else [[as_reply(chat.turns[-1])] for chat in chats]
            contexts = chats if taught else [replace(chat, turns=chat.turns[:-1]) for chat in chats]
            for i, result in zip(group, truncate(self.tokenizer, contexts, replies, limit), strict=True):
                found[i] = result
        return found

    def _bodies(self, window: _Window, found: Truncated | str) -> list[list[int]] | str:
        """The ids of the window's last output, in a list, or why there are none; of a teacher's row they are empty."""
        if isinstance(found, str):
            return found
        return reply_ids(self.tokenizer, found) if window.outputs else [[]]

    def _refuse(self, window: _Window, reason: str) -> None:
        """Reject the last output of a window, and queue the others again unless the chat's last reply is no reply."""
        chat = self.chats[window.place]
        found = rejection_of(chat.file, chat.line, chat.field, reason)
        # of a conversation whose last reply is learned, an earlier one may be left out
        self.rejections.append(found if window.is_last or found.needed else replace(found, reason=EARLIER))
        if len(window.outputs) > 1 and (found.needed or not window.is_last):
            rest = _window(window.place, window.conversation, window.outputs[:-1], window.limit)
            self.queue.append(replace(rest, is_last=False))

    def _add_several(self, several: Sequence[_Several]) -> None:
        """Make a row of each window with several outputs, or queue each output as a window of its own."""
        texts = [text for one in several for border in one.borders for text in border]
        ids = iter(tokenize_texts(self.tokenizer, texts))
        for one in several:
            row = one.found.chat.prompt + one.body
            borders = [(next(ids), next(ids)) for _ in one.borders]
            if one.found.chat.realigned or any(row[: len(part)] != part for both in borders for part in both):
                self.queue += _apart(one.whole)
            else:
                self.queue += _rest(one.whole, one.left)
                self._add(one.left, one.found, one.body, [(len(before), len(end)) for before, end in borders])

    def _add(
        self, window: _Window, found: Truncated, body: Sequence[int], before: Sequence[tuple[int, int]] = ()
    ) -> None:
        """Add a row; `before` are the spans of the outputs before the last one."""
        chat, prompt, odds, known = self.chats[window.place], found.chat.prompt, None, turn_ends(self.tokenizer)
        ends = [known.ids[0]] * len(before) + [known.end_of(found.chat.rests[0] if window.outputs else [])]
        if chat.tokens:  # the teacher's last token is predicted and not read
            *body, ends[-1] = chat.tokens
            odds = [math.exp(x) for x in chat.logprobs]
        spans = (*before, (len(prompt), len(prompt) + len(body)))
        ids, realigned = [*prompt, *body], found.chat.realigned
        replies = Replies([], [ids], window.dropped_turns, found.shortened, realigned=realigned)
        row = Example(replies, spans, tuple(ends), found.conversation, chat.file, chat.line, odds)
        self.rows[window.place].append(row)


def _rows_of_text(chat: TrainingChat, tokenizer, max_length: int) -> list[Example]:
    """A plain text as rows in which every token but the first is learned, and the eos behind the last."""
    [ids] = tokenize_texts(tokenizer, [chat.text])
    end, start = tokenizer.eos_token_id, tokenizer.bos_token_id
    ids = ids[:-1] if ids[-1:] == [end] else ids
    ids = [start, *ids] if start is not None and ids[:1] != [start] else ids
    parts = [ids[i : i + max_length + 1] for i in range(0, max(1, len(ids) - 1), max_length)]
    return [
        Example(
            Replies([], [part[:max_length]]),
            ((1, min(len(part), max_length)),),
            (part[max_length] if len(part) > max_length else end,),
            chat.conversation,
            chat.file,
            chat.line,
        )
        for part in parts
    ]


def _window(place: int, conversation: Conversation, outputs: tuple[int, ...], limit: int) -> _Window:
    if outputs:
        conversation = replace(conversation, turns=conversation.turns[: outputs[-1] + 1])
    return _Window(place, conversation, outputs, limit)


def _rest(window: _Window, left: _Window) -> list[_Window]:
    """The outputs that truncation left out, as a window of their own."""
    outputs = window.outputs[: len(window.outputs) - len(left.outputs)]
    if not outputs:
        return []
    return [replace(_window(window.place, window.conversation, outputs, window.limit), is_last=False)]


def _apart(window: _Window) -> list[_Window]:
    """Each output as a window of its own."""
    turns, found = window.conversation.turns, []
    for output in window.outputs:
        # every turn takes a token or more: of a very long chat only its end can be kept
        end, first = replace(window.conversation, turns=turns[: output + 1]), max(0, output - window.limit)
        end, first = start_at_turn(end, first) if first else (end, 0)
        apart = _window(window.place, end, (output - first,), window.limit)
        is_last = window.is_last and output == window.outputs[-1]
        found.append(replace(apart, dropped_turns=window.dropped_turns + first, is_last=is_last))
    return found


def _end_of(window: _Window, fitted: Truncated) -> _Window:
    """The window with what truncation left of it: those outputs that answer a turn in it."""
    first = fitted.dropped_turns
    turns = fitted.conversation.turns + (window.conversation.turns[-1:] if window.outputs else ())
    return replace(
        window,
        conversation=replace(fitted.conversation, turns=turns),
        outputs=tuple(output - first for output in window.outputs if output > first),
        dropped_turns=window.dropped_turns + first,
    )
