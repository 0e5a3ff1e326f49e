"""Conversations as token ids, and the places whose next token carries loss: the tokens of outputs and of nothing else.

Design decisions:
- A conversation is cut into texts: what stands before an output, the output, what stands before the next one. Each is
  tokenised apart, so no token straddles a border; what the template writes is what the model will be prompted with.
- Each output's last target is the eos token, whatever the template writes behind a turn within a conversation: there
  the model stops when it talks. Without it only last turns would teach where a reply ends.
- A conversation is one row where its template only ever appends. Where it rewrites what came before (some drop
  earlier thoughts), each output is a row of its own.
- A row longer than `max_length` is cut on the left, each output whole: the last outputs with what fits before them,
  then, in a row of their own, the outputs that were cut off there.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmgym.rows import Rejection
from lmgym.text import Conversation, Replies, render_all, tokenize_texts
from sft.conversations import Chat


@dataclass(frozen=True)
class Example:
    """A row of ids, and what is to be predicted at some of its places."""

    replies: Replies
    """one tail: the ids; `truncated` of its conversation's were cut off"""
    places: list[int]
    """the logits at place t predict the target, which is mostly the token at t + 1"""
    targets: list[int]
    chat: Chat
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
        return self.replies.tails[0]


@dataclass(frozen=True)
class Output:
    """A stretch of a row, [start, end), that is to be predicted from the place before it on."""

    turn: int
    """where the text in front of it begins: a row that holds it from there has the whole turn that it answers"""
    start: int
    end: int
    targets: list[int]
    probabilities: list[float] | None = None


def tokenize_chats(chats: Sequence[Chat], tokenizer, max_length: int) -> tuple[list[Example], list[Rejection]]:
    """Rows of every conversation whose outputs fit whole; what cannot be a row as rejections."""
    rows, rejections, texts = [], [], []

    def reject(chat: Chat, found: str) -> None:
        rejections.append(Rejection(chat.file, chat.line, chat.field, found))

    for chat, rendered in zip(chats, _render(chats, tokenizer), strict=True):
        if isinstance(rendered, str):
            reject(chat, rendered)
        else:
            texts += [(chat, pieces) for pieces in rendered]
    # all texts go through one call of the tokenizer
    ids = iter(tokenize_texts(tokenizer, [text for _, pieces in texts for text in pieces]))
    for chat, pieces in texts:
        sequence, outputs = _lay_out([next(ids) for _ in pieces], chat, tokenizer)
        for row in _windows(sequence, outputs, max_length, tokenizer.bos_token_id, chat):
            if isinstance(row, str):
                reject(chat, row)
            else:
                rows.append(row)
    return rows, rejections


def _render(chats: Sequence[Chat], tokenizer) -> Iterator[list[list[str]] | str]:
    """Of each conversation its rows as texts, in turn context and output; or why there are none."""
    prompts = [_before(chat, turn) for chat in chats for turn in chat.outputs or (len(chat.conversation.turns),)]
    contexts = iter(render_all(tokenizer, prompts))
    owners = [(_before(chat, turn), chat.conversation.turns[turn].text) for chat in chats for turn in chat.outputs]
    wholes = iter(render_all(tokenizer, [c for c, _ in owners], [text for _, text in owners]))
    for chat in chats:
        if chat.tokens:
            context, most = next(contexts), max(chat.tokens)
            unknown = f"token {most}; needed: ids below {len(tokenizer)}, of this tokenizer"
            yield unknown if most >= len(tokenizer) else [[context]]
            continue
        pairs = [(next(contexts), next(wholes)) for _ in chat.outputs]
        if any(not whole.startswith(context) for context, whole in pairs):
            yield "the tokenizer's template begins a reply otherwise than it ends a prompt; needed: one that appends"
            continue
        if any(tokenizer.eos_token in chat.conversation.turns[turn].text for turn in chat.outputs):
            yield f"an output that holds {tokenizer.eos_token}, which ends a reply; needed: text without it"
            continue
        bodies = [whole[len(context) :].partition(tokenizer.eos_token)[0] for context, whole in pairs]
        firsts = [context for context, _ in pairs]
        ends = [context + body for context, body in zip(firsts, bodies, strict=True)]
        if all(after.startswith(before) for before, after in zip(ends, firsts[1:], strict=False)):
            between = [after[len(before) :] for before, after in zip(ends, firsts[1:], strict=False)]
            yield [[text for both in zip([firsts[0], *between], bodies, strict=True) for text in both]]
        else:
            yield [[context, body] for context, body in zip(firsts, bodies, strict=True)]


def _before(chat: Chat, turn: int) -> Conversation:
    return Conversation(chat.conversation.turns[:turn], chat.conversation.persona)


def _lay_out(pieces: list[list[int]], chat: Chat, tokenizer) -> tuple[list[int], list[Output]]:
    """A row's ids and its outputs, out of pieces that are in turn context and output."""
    if chat.tokens:  # the teacher's last token is predicted and not read
        start = len(pieces[0])
        odds = [math.exp(x) for x in chat.logprobs]
        output = Output(0, start, start + len(chat.tokens) - 1, list(chat.tokens), odds)
        return [*pieces[0], *chat.tokens[:-1]], [output]
    ids: list[int] = []
    outputs = []
    for context, body in zip(pieces[::2], pieces[1::2], strict=True):
        start = len(ids) + len(context)
        outputs.append(Output(len(ids), start, start + len(body), [*body, tokenizer.eos_token_id]))
        ids += context + body
    return ids, outputs


def _windows(
    ids: list[int], outputs: list[Output], max_length: int, keep_first: int | None, chat: Chat
) -> Iterator[Example | str]:
    """Rows of at most `max_length` ids in which each output that fits stands whole, once; or why one does not fit."""
    left = list(outputs)
    bos = ids[:1] if ids[0] == keep_first else []
    while left:
        end = left[-1].end
        begin = max(0, end - max_length + len(bos)) if end > max_length else 0
        last = left.pop()
        if begin > last.start - 1:
            yield f"an output of {len(last.targets)} tokens; with one before it it exceeds max_length={max_length}"
            continue
        here = [last]
        while left and left[-1].turn >= begin:
            here.append(left.pop())
        head = bos if begin else []
        places = [p - begin + len(head) for o in reversed(here) for p in range(o.start - 1, o.end)]
        yield Example(
            Replies([], [[*head, *ids[begin:end]]], begin - len(head) if begin else 0),
            places,
            [target for o in reversed(here) for target in o.targets],
            chat,
            _joined([o.probabilities for o in reversed(here)]),
        )


def _joined(parts: list[list[float] | None]) -> list[float] | None:
    given = [part for part in parts if part is not None]
    return [x for part in given for x in part] if given else None
