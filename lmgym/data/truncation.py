"""The only truncation of chats to what a model reads: whole turns are dropped, the oldest first; the persona stays.

Design decisions:
- The rest is rendered by the chat template again, so no text begins inside a template.
- All replies to a conversation lose the same turns, so that they are compared in the same context.
- A conversation that began with a user's turn still begins with one: some chat templates require it.
- No truncated conversation begins with a tool's result: its call would be missing.
- If the last turn alone is too long, it loses tokens at its beginning, counted by `shortened`. Replies are never cut,
  except with `cut_replies`.
- A text of many contexts is cut to an end of it before it is rendered and tokenised; it has lost more than `shortened`.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lmgym.data.rejections import TOO_LONG, UNFIT, Rejection
from lmgym.data.tokenization import NO_PROMPT_PREFIX, ChatIds, Endings, tokenize
from lmgym.templates import once_a_template
from lmgym.text import (
    ROLES,
    Conversation,
    Replies,
    Reply,
    Turn,
    as_reply,
    as_turn,
    share_prefix,
    tokenize_texts,
    words_of,
)
from lmgym.turn_ends import turn_ends

SAME_IDS = "the same token ids as chosen: the tokenizer or its chat template leaves out what differs"
CHARACTERS_A_TOKEN = 8  # of most texts it is less
BLANKS = re.compile(r"\s{16,}+")
FEW_TURNS = 64  # with more, search from the end: most of a very long chat is never rendered


class OverLong(str):
    """The reason why a conversation does not fit; `needed` is a number of tokens in which it would."""

    needed: int

    def __new__(cls, reason: str, needed: int) -> "OverLong":
        made = super().__new__(cls, reason)
        made.needed = needed
        return made


def rejection_of(file: str, line: int, column: str, refusal: str) -> Rejection:
    """The rejection of a row, from what `truncate` says."""
    if isinstance(refusal, OverLong):
        return Rejection(file, line, column, str(refusal), TOO_LONG, refusal.needed)
    return Rejection(file, line, column, refusal, UNFIT)


@dataclass(frozen=True)
class Truncated:
    """A conversation that fits, with the replies to it."""

    conversation: Conversation
    replies: Endings
    chat: ChatIds
    dropped_turns: int = 0
    """oldest turns that were left out"""
    shortened: int = 0
    """tokens that the last turn (and with `cut_replies` a reply) lost at its beginning; of a text that is many times
    too long, those of its end alone"""

    @property
    def ids(self) -> list[list[int]]:
        """Token ids of the whole text with each reply, or of the prompt alone."""
        return self.chat.wholes


def truncate(
    tokenizer,
    conversations: Sequence[Conversation],
    replies: Sequence[Sequence[Reply]] | None,
    max_length: int,
    cut_replies: bool = False,
    may_lose_text: bool = False,
    as_sampled: bool = True,
) -> list[Truncated | str]:
    """Each conversation with its replies (None: as a prompt) in at most `max_length` tokens, or why that fails.

    It fails if a reply or the system message alone is too long (OverLong), if the chat template refuses the
    conversation, and unless `may_lose_text` if the template changes a reply. `as_sampled`: see `tokenize`.
    """
    given: list[Endings] = [(None,)] * len(conversations) if replies is None else [tuple(group) for group in replies]
    bounded = [_bounded(tokenizer, conversation, max_length) for conversation in conversations]
    searches = [
        _Search(cut, endings, max_length, is_cut=cut is not whole)
        for cut, whole, endings in zip(bounded, conversations, given, strict=True)
    ]
    read = partial(tokenize, tokenizer, may_lose_text=may_lose_text or cut_replies, as_sampled=as_sampled)
    while pending := [search for search in searches if not search.done]:
        for search, ids in zip(pending, read([(one.candidate, one.endings) for one in pending]), strict=True):
            search.advance(ids)
    return [search.found or _shorten_last_turn(tokenizer, search, cut_replies, read) for search in searches]


@once_a_template
def longest_token(tokenizer) -> int:
    """Characters of the longest token of the vocabulary, at least."""
    return max(map(len, tokenizer.get_vocab()), default=1)


def ends_of(tokenizer, texts: Sequence[str], tokens: int) -> list[str]:
    """The texts, of which those of many more than so many tokens keep an end: so each costs what a context does.

    A text of so many tokens stays as it is, whatever its tokenizer leaves out or joins (blanks, accents, unknown
    characters): an end that makes fewer than twice as many is taken larger. A run of blanks keeps its end too.
    """
    ends, size = list(texts), CHARACTERS_A_TOKEN * tokens
    growing = [i for i, text in enumerate(texts) if len(text) > size]
    if not growing:
        return ends
    longest = longest_token(tokenizer)
    for i in growing:
        ends[i] = BLANKS.sub(lambda run: run[0][-tokens * longest :], ends[i])
    while growing := [i for i in growing if len(ends[i]) > size]:
        # a template may strip a text
        counts = map(len, tokenize_texts(tokenizer, [ends[i][-size:].strip() for i in growing]))
        enough = {i for i, count in zip(growing, counts, strict=True) if count > 2 * tokens + longest}
        for i in enough:
            ends[i] = ends[i][-size:]
        growing, size = [i for i in growing if i not in enough], 4 * size
    return ends


def bounded_replies(tokenizer, replies: Sequence[Reply], tokens: int) -> list[Reply]:
    """The replies, each with the ends of its texts alone (`ends_of`)."""
    return list(map(as_reply, _bounded_turns(tokenizer, list(map(as_turn, replies)), tokens)))


def _bounded(tokenizer, conversation: Conversation, tokens: int) -> Conversation:
    """The conversation with the ends of its texts alone; the same object if none is cut."""
    texts = [
        conversation.persona,
        conversation.tools,
        *(text for t in conversation.turns for text in (t.text, t.extra)),
    ]
    if max(map(len, texts)) <= CHARACTERS_A_TOKEN * tokens:
        return conversation
    turns = tuple(_bounded_turns(tokenizer, conversation.turns, tokens))
    [persona] = ends_of(tokenizer, [conversation.persona], tokens)
    tools = _bounded_json(tokenizer, conversation.tools, tokens)
    bounded = replace(conversation, turns=turns, persona=persona, tools=tools)
    return conversation if bounded == conversation else bounded


def _bounded_turns(tokenizer, turns: Sequence[Turn], tokens: int) -> list[Turn]:
    texts = ends_of(tokenizer, [turn.text for turn in turns], tokens)
    extras = [_bounded_json(tokenizer, turn.extra, tokens) for turn in turns]
    return [
        turn if (text, extra) == (turn.text, turn.extra) else replace(turn, text=text, extra=extra)
        for turn, text, extra in zip(turns, texts, extras, strict=True)
    ]


def _bounded_json(tokenizer, written: str, tokens: int) -> str:
    """A JSON text with the ends of the strings in it."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cut(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return list(map(cut, value))
        return ends_of(tokenizer, [value], tokens)[0] if isinstance(value, str) else value

    if len(written) <= CHARACTERS_A_TOKEN * tokens:
        return written
    value = json.loads(written)
    bounded = cut(value)
    return written if bounded == value else json.dumps(bounded, ensure_ascii=False)


def tokenize_replies(
    tokenizer,
    conversations: Sequence[Conversation],
    replies: Sequence[Sequence[Reply]],
    max_length: int,
    cut_replies: bool = False,
    may_lose_text: bool = False,
    as_sampled: bool = True,
) -> list[Replies | str]:
    """Token ids of the replies to each conversation, truncated together, or the reason of failure (see `truncate`).

    With `as_sampled` a text ends where its last turn ends (lmgym/turn_ends.py), without what the template writes behind
    it; else it is the template's.
    """
    return [
        found if isinstance(found, str) else scored_ids(tokenizer, found, as_sampled)
        for found in truncate(tokenizer, conversations, replies, max_length, cut_replies, may_lose_text, as_sampled)
    ]


def scored_ids(tokenizer, row: Truncated, as_sampled: bool = True) -> Replies:
    """The ids that a scorer reads: of the whole texts, with `as_sampled` up to the end of the last turn."""
    wholes, prompt = row.ids, row.chat.prompt
    if as_sampled and row.chat.has_prompt:
        ends = turn_ends(tokenizer)
        wholes = [[*prompt, *ends.up_to(rest)] for rest in row.chat.rests]
    return share_prefix(wholes, row.dropped_turns, row.shortened, row.chat.realigned)


def tokenize_apart(
    tokenizer, conversations: Sequence[Conversation], replies: Sequence[Sequence[Reply]], max_length: int
) -> list[Replies | str]:
    """Token ids of the prompt and of the replies to it, as a policy reads and samples them, truncated together.

    The prefix is the prompt without its last token, which every suffix begins with: the tokens of a suffix predict
    those of the reply, and its last one the end of the turn, which is not in it. A string is the reason of failure: see
    `truncate` and `reply_ids`.
    """
    found, ends = list[Replies | str](), turn_ends(tokenizer)
    for row in truncate(tokenizer, conversations, replies, max_length):
        bodies = row if isinstance(row, str) else reply_ids(tokenizer, row)
        if isinstance(row, str) or isinstance(bodies, str):
            found.append(bodies if isinstance(bodies, str) else "")
            continue
        *prefix, last = row.chat.prompt
        suffixes = [[last, *body] for body in bodies]
        last_ones = tuple(map(ends.end_of, row.chat.rests))
        others = last_ones if any(one != ends.ids[0] for one in last_ones) else ()  # as those behind calls of tools
        found.append(Replies(prefix, suffixes, row.dropped_turns, row.shortened, others, row.chat.realigned))
    return found


def reply_ids(tokenizer, row: Truncated) -> list[list[int]] | str:
    """The ids of each reply behind the prompt, before the end of its turn; or why there are none."""
    if not row.chat.has_prompt or not row.chat.prompt:
        return NO_PROMPT_PREFIX
    ends = turn_ends(tokenizer)
    if token := next(filter(None, (ends.token_in(words_of(reply)) for reply in row.replies if reply is not None)), ""):
        return f"a reply that holds {token}, which ends a reply; needed: text without it"
    return [ends.body(rest) for rest in row.chat.rests]


def describe_truncation(dropped_turns: int, shortened: int) -> str:
    """A truncation in words; empty if nothing was left out."""
    turns = f"without the {dropped_turns} oldest turn{'s' * (dropped_turns > 1)}" if dropped_turns else ""
    words = f"at least its first {shortened:,} token{'s' * (shortened > 1)}"
    tokens = f"the last turn without {words}" if shortened else ""
    return ", ".join(filter(None, (turns, tokens)))


def start_at_turn(conversation: Conversation, first: int) -> tuple[Conversation, int]:
    """(the conversation from turn `first` on, or from the next user's turn if a user began it, turns dropped)."""
    turns = conversation.turns
    while _is_user(turns[0]) and not _is_user(turns[first]) and first + 1 < len(turns):
        first += 1
    return replace(conversation, turns=turns[first:]), first


def drop_first_tokens(tokenizer, text: str, tokens: int) -> str:
    """A text without at least its first `tokens` tokens; empty if it has no more."""
    if tokens < 1:
        return text
    if tokenizer.is_fast:
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False).offset_mapping
        begins = [begin for begin, _ in offsets[tokens:] if begin > 0]
        return text[begins[0] :].lstrip() if begins else ""
    count = len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
    return text[max(1, len(text) * tokens // max(1, count)) :].lstrip()


class _Search:
    """Binary search for the longest end of a conversation that fits.

    The first candidate is the whole conversation, or in a very long one the last turn (`is_cut`, or many turns), after
    which the number of candidate starts doubles until one is too long.
    """

    def __init__(self, conversation: Conversation, endings: Endings, max_length: int, is_cut: bool = False) -> None:
        self.conversation, self.endings, self.max_length, self.is_cut = conversation, endings, max_length, is_cut
        turns, last = conversation.turns, len(conversation.turns) - 1
        user_begins = bool(turns) and _is_user(turns[0])
        in_reach = range(max(0, last - max_length), last + 1)  # every turn takes a token or more
        self.starts = [
            i for i in in_reach if _is_user(turns[i]) or (turns[i].speaker != "tool" and (not user_begins or i == last))
        ] or [0]
        """turns that a truncated conversation may begin with"""
        self.found: Truncated | str | None = None
        """the longest end that fits, or the template's error"""
        self.done = False
        # indices into `starts`: those up to `too_long` are too long, those from `fits` on fit
        self.too_long, self.fits, self.step = -1, len(self.starts), 1
        self.index = len(self.starts) - 1 if is_cut or len(self.starts) > FEW_TURNS else 0

    @property
    def candidate(self) -> Conversation:
        """The end of the conversation that is to be tokenised next."""
        return replace(self.conversation, turns=self.conversation.turns[self.starts[self.index] :])

    def advance(self, ids: ChatIds | str) -> None:
        """Take the token ids of the candidate, or the template's error, and choose the next one."""
        last = len(self.starts) - 1
        if not isinstance(ids, str) and ids.longest <= self.max_length:
            self.fits = self.index
            self.found = Truncated(self.candidate, self.endings, ids, self.starts[self.index])
        elif isinstance(ids, str) and (self.starts[self.index] == 0 or self.index == last):
            self.found, self.done = ids, True
        else:
            self.too_long = self.index
        if self.fits > last and self.too_long < last:
            self.index = last
        elif self.fits - self.too_long <= 1:
            self.done = True
        elif self.too_long < 0 or self.step < self.fits - self.too_long:
            self.index, self.step = max(self.too_long + 1, self.fits - self.step), 2 * self.step
        else:
            self.index = (self.too_long + self.fits) // 2


def _shorten_last_turn(
    tokenizer, search: _Search, cut_replies: bool, read: Callable[..., list[ChatIds | str]]
) -> Truncated | str:
    """The last turn alone with the replies, cut at its beginning until it fits; `read` tokenises chats."""
    max_length, turns = search.max_length, search.conversation.turns[-1:]
    if turns and turns[0].speaker == "tool":
        reason = f"a tool's result and the turns since the user's are too long; max_length={max_length}"
        return OverLong(reason, 2 * max_length)
    conversation, endings, first_excess = replace(search.conversation, turns=turns), search.endings, 0
    while True:
        [ids] = read([(conversation, endings)])
        if isinstance(ids, str):
            return ids
        excess = ids.longest - max_length
        first_excess = first_excess or excess
        if excess <= 0:
            dropped = len(search.conversation.turns) - len(turns)
            return Truncated(conversation, endings, ids, dropped, first_excess - excess)
        if turns and turns[0].text:
            turns = (replace(turns[0], text=drop_first_tokens(tokenizer, turns[0].text, excess)),)
            conversation = replace(conversation, turns=turns)
        elif cut_replies and any(e and len(row) > max_length for e, row in zip(endings, ids.wholes, strict=True)):
            endings = tuple(
                drop_first_tokens(tokenizer, _text(ending), len(row) - max_length)
                for ending, row in zip(endings, ids.wholes, strict=True)
            )
        else:
            what = "the system message" if cut_replies or endings == (None,) else "the reply"
            needed = f"{excess + max_length} tokens with the template's marks and no other turn"
            needed = f"at least {needed}" if search.is_cut else needed
            return OverLong(f"{what} is too long: {needed}; max_length={max_length}", excess + max_length)


def _text(ending: Reply | None) -> str:
    """A reply's text: only a scorer cuts replies."""
    assert ending is not None
    return ending if isinstance(ending, str) else ending.text


def _is_user(turn: Turn) -> bool:
    return ROLES.get(turn.speaker) == "user"
