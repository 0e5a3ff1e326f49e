"""Conversations as token ids, and the places whose next token carries loss: the tokens of outputs and of nothing else.

Design decisions:
- A conversation is cut into texts: the context before an output, the output, the context before the next one. Each is
  tokenised apart, so no token straddles a border, and the context is what the model will be prompted with.
- Each output's last target is the eos token, whatever the template writes after a turn within a conversation: there
  the model stops when it generates. Without it only last turns would teach where a reply ends.
- A conversation is one row where its template only ever appends. Where it rewrites what came before (some drop
  earlier thoughts), each output is a row of its own.
- A conversation longer than `max_length` becomes several rows, truncated as everywhere (data/truncation.py): the last
  outputs with the turns that fit before them, then, in a row of their own, the outputs that were left out there. Each
  output stands whole, once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lmgym.data.rejections import UNFIT, Rejection
from lmgym.data.truncation import FEW_TURNS, Truncated, start_at_turn, truncate
from lmgym.text import Conversation, Replies, as_reply, render_each, tokenize_texts
from sft.conversations import TrainingChat
from sft.layout import pieces_of


@dataclass(frozen=True)
class Example:
    """A row of ids, and what is to be predicted at some of its places."""

    replies: Replies
    """one suffix: the ids"""
    places: list[int]
    """the logits at place t predict the target, which is mostly the token at t + 1"""
    targets: list[int]
    chat: TrainingChat
    """of which it is a row"""
    probabilities: list[float] | None = None
    """a teacher's, one a target"""

    @property
    def origin(self) -> str:
        """file:line of its conversation."""
        return f"{Path(self.chat.file).name}:{self.chat.line}"

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
    too_long: bool
    """must be truncated before it is rendered whole"""
    dropped_turns: int = 0
    shortened: int = 0
    whole: "_Window | None" = None
    """of which it is what truncation left"""


def tokenize_chats(chats: Sequence[TrainingChat], tokenizer, max_length: int) -> tuple[list[Example], list[Rejection]]:
    """Rows of every conversation whose outputs fit whole; what cannot be a row as rejections."""
    tokenization = _Tokenization(chats, tokenizer, max_length)
    while tokenization.queue:
        windows = [(window, tokenization.pieces(window)) for window in tokenization.truncate()]
        laid_out = [(window, texts) for window, texts in windows if texts]
        # all texts of a round go through one call of the tokenizer
        ids = iter(tokenize_texts(tokenizer, [text for _, texts in laid_out for text in texts]))
        for window, texts in laid_out:
            tokenization.add(window, [next(ids) for _ in texts])
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
                self._reject(place, f"token {max(chat.tokens)}; needed: ids below {len(tokenizer)}, of this tokenizer")
            else:
                limit = max_length - max(0, len(chat.tokens) - 1)
                self.queue.append(_window(place, chat.conversation, chat.outputs, limit))

    def truncate(self) -> list[_Window]:
        """Empty the queue into windows that may be rendered; of one whose last output does not fit the rest is left."""
        windows, self.queue, ready = self.queue, [], []
        fitted = self._fit([window for window in windows if window.too_long])
        for window in windows:
            result = fitted.get(id(window))
            if not isinstance(result, str):
                ready.append(window if result is None else _end_of(window, result))
                continue
            self._reject(window.place, result)
            if len(window.outputs) > 1:
                self.queue.append(_window(window.place, window.conversation, window.outputs[:-1], window.limit))
        return ready

    def _fit(self, windows: list[_Window]) -> dict[int, Truncated | str]:
        """The truncated text of each window by id, or the reason why it cannot be truncated."""
        found: dict[int, Truncated | str] = {}
        for limit, taught in {(window.limit, not window.outputs) for window in windows}:
            group = [window for window in windows if (window.limit, not window.outputs) == (limit, taught)]
            chats = [window.conversation for window in group]
            replies = None if taught else [[as_reply(chat.turns[-1])] for chat in chats]
            contexts = chats if taught else [replace(chat, turns=chat.turns[:-1]) for chat in chats]
            fitted = truncate(self.tokenizer, contexts, replies, limit)
            found |= {id(window): result for window, result in zip(group, fitted, strict=True)}
        return found

    def pieces(self, window: _Window) -> list[str]:
        """Texts of a window, in turn context and output (see `pieces_of`); of a teacher's row the context alone.

        Empty if the window is rejected, or queued again as a window for each output.
        """
        if window.outputs:
            pieces = pieces_of(self.tokenizer, window.conversation, window.outputs)
        else:
            [context] = render_each(self.tokenizer, [window.conversation])
            pieces = [context] if isinstance(context, str) else str(context)
        if isinstance(pieces, str):
            self._reject(window.place, pieces)
        elif pieces is None:
            self.queue += _apart(window.whole or window)
        return pieces if isinstance(pieces, list) else []

    def add(self, window: _Window, ids: list[list[int]]) -> None:
        """Make a row of the pieces' ids, or queue the window again if they are too many."""
        example = _example(window, ids, self.chats[window.place], self.tokenizer)
        excess = len(example.ids) - self.max_length
        if excess <= 0:
            self.rows[window.place].append(example)
            self.queue += _rest(window)
        elif window.whole is None:
            self.queue.append(replace(window, too_long=True))
        else:  # apart, its pieces have a token or two more than its text has as a whole
            self.queue.append(replace(window.whole, too_long=True, limit=window.limit - excess))

    def _reject(self, place: int, found: str) -> None:
        chat = self.chats[place]
        self.rejections.append(Rejection(chat.file, chat.line, chat.field, found, UNFIT))


def _window(place: int, conversation: Conversation, outputs: tuple[int, ...], limit: int) -> _Window:
    if outputs:
        conversation = replace(conversation, turns=conversation.turns[: outputs[-1] + 1])
    return _Window(place, conversation, outputs, limit, too_long=len(conversation.turns) > FEW_TURNS)


def _rest(window: _Window) -> list[_Window]:
    """The outputs that truncation left out, as a window of their own."""
    whole = window.whole
    if whole is None or len(whole.outputs) == len(window.outputs):
        return []
    outputs = whole.outputs[: len(whole.outputs) - len(window.outputs)]
    return [_window(whole.place, whole.conversation, outputs, whole.limit)]


def _apart(window: _Window) -> list[_Window]:
    """Each output as a window of its own."""
    turns, found = window.conversation.turns, []
    for output in window.outputs:
        # every turn takes a token or more: of a very long chat only its end can be kept
        end, first = replace(window.conversation, turns=turns[: output + 1]), max(0, output - window.limit)
        end, first = start_at_turn(end, first) if first else (end, 0)
        apart = _window(window.place, end, (output - first,), window.limit)
        found.append(replace(apart, dropped_turns=first))
    return found


def _end_of(window: _Window, fitted: Truncated) -> _Window:
    """The window with what truncation left of it: those outputs that answer a turn in it."""
    first = fitted.dropped_turns
    turns = fitted.conversation.turns + (window.conversation.turns[-1:] if window.outputs else ())
    return replace(
        window,
        conversation=replace(fitted.conversation, turns=turns),
        outputs=tuple(output - first for output in window.outputs if output > first),
        too_long=False,
        dropped_turns=window.dropped_turns + first,
        shortened=fitted.shortened,
        whole=replace(window, too_long=False),
    )


def _example(window: _Window, pieces: list[list[int]], chat: TrainingChat, tokenizer) -> Example:
    """A row out of pieces that are in turn context and output."""
    ids: list[int] = []
    places: list[int] = []
    targets: list[int] = []
    odds = None
    if chat.tokens:  # the teacher's last token is predicted and not read
        ids, targets = [*pieces[0], *chat.tokens[:-1]], list(chat.tokens)
        places, odds = list(range(len(pieces[0]) - 1, len(ids))), [math.exp(x) for x in chat.logprobs]
    for context, body in () if chat.tokens else zip(pieces[::2], pieces[1::2], strict=True):
        ids += context
        places += range(len(ids) - 1, len(ids) + len(body))
        ids += body
        targets += [*body, tokenizer.eos_token_id]
    replies = Replies([], [ids], window.dropped_turns, window.shortened)
    return Example(replies, places, targets, chat, odds)
