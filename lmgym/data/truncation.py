"""The one way in which chats are cut to what a model reads: the oldest turns go, whole; the system message stays.

Design decisions:
- What is left is rendered by the chat template again, so no text ever begins inside a template.
- All replies to a conversation lose the same turns: they are compared in the same context.
- A conversation that began with the user's turn goes on beginning with one: some chat templates refuse anything else.
- Where the last turn alone is too long, the rule `keep_end` holds: its words lose their beginning, as many tokens as
  must go, and `shortened` says how many. A reply stays whole unless `cut_replies` extends the rule to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmgym.errors import InputError
from lmgym.text import ROLES, Conversation, Replies, Turn, render_each, share_prefix, tokenize_texts

FEW_TURNS = 64  # with more, search from the end: most of a very long chat is never rendered

Endings = tuple[str, ...] | tuple[None]
"""replies of which each ends the conversation, or (None,): the place where a reply begins"""


@dataclass(frozen=True)
class Fitted:
    """What is left of a conversation with the replies to it."""

    conversation: Conversation
    replies: Endings
    ids: list[list[int]]
    """token ids of the whole text of each reply; of the prompt alone where there is no reply"""
    dropped_turns: int = 0
    """oldest turns that were left out"""
    shortened: int = 0
    """tokens that the last turn (and with `cut_replies` a reply) lost at its beginning"""


def truncate(
    tokenizer,
    conversations: Sequence[Conversation],
    replies: Sequence[Sequence[str]] | None,
    max_length: int,
    cut_replies: bool = False,
) -> list[Fitted | str]:
    """Each conversation with k replies (None: as a prompt) in at most `max_length` tokens, or why that cannot be.

    It cannot be where a reply, or the system message, alone is too long, and where the chat template refuses the
    conversation.
    """
    given: list[Endings] = [(None,)] * len(conversations) if replies is None else [tuple(group) for group in replies]
    searches = [_Search(c, endings, max_length) for c, endings in zip(conversations, given, strict=True)]
    while pending := [search for search in searches if not search.done]:
        probes = [search.probe() for search in pending]
        tokenized = _tokenize(tokenizer, [(probe, s.endings) for probe, s in zip(probes, pending, strict=True)])
        for search, probe, ids in zip(pending, probes, tokenized, strict=True):
            search.take(probe, ids, max_length)
    return [search.found or _keep_end(tokenizer, search, max_length, cut_replies) for search in searches]


def tokenize_replies(
    tokenizer,
    conversations: Sequence[Conversation],
    replies: Sequence[Sequence[str]],
    max_length: int,
    cut_replies: bool = False,
) -> list[Replies | str]:
    """Token ids of k replies to each conversation, truncated alike, or why there are none (see `truncate`)."""
    return [
        found if isinstance(found, str) else share_prefix(found.ids, found.dropped_turns, found.shortened)
        for found in truncate(tokenizer, conversations, replies, max_length, cut_replies)
    ]


def left_out(dropped_turns: int, shortened: int) -> str:
    """What truncation left out, in words; empty where it left out nothing."""
    turns = f"without the {dropped_turns} oldest turn{'s' * (dropped_turns > 1)}" if dropped_turns else ""
    tokens = f"the last turn without its first {shortened} token{'s' * (shortened > 1)}" if shortened else ""
    return ", ".join(filter(None, (turns, tokens)))


def from_turn(conversation: Conversation, first: int) -> tuple[Conversation, int]:
    """The conversation from a turn on, or from the next one where that keeps who began it; and how many turns went."""
    turns = conversation.turns
    if _is_user(turns[0]) and not _is_user(turns[first]) and first + 1 < len(turns):
        first += 1
    return replace(conversation, turns=turns[first:]), first


def keep_end(tokenizer, text: str, tokens: int) -> str:
    """A text without at least so many tokens at its beginning; empty where it has no more."""
    if tokens < 1:
        return text
    if tokenizer.is_fast:
        places = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False).offset_mapping
        begins = [begin for begin, _ in places[tokens:] if begin > 0]
        return text[begins[0] :].lstrip() if begins else ""
    count = len(tokenizer(text, add_special_tokens=False, verbose=False).input_ids)
    return text[max(1, len(text) * tokens // max(1, count)) :].lstrip()


class _Search:
    """The longest end of a conversation that fits: the whole, else doubling from the last turn, then halving."""

    def __init__(self, conversation: Conversation, endings: Endings, max_length: int) -> None:
        self.conversation, self.endings = conversation, endings
        turns, last = conversation.turns, len(conversation.turns) - 1
        user_begins = bool(turns) and _is_user(turns[0])
        # every turn takes a token or more
        places = range(max(0, last - max_length), last + 1)
        self.starts = [i for i in places if _is_user(turns[i]) or not user_begins or i == last] or [0]
        self.found: Fitted | str | None = None
        self.done = False
        # places in `starts`: too long from `low` on, fits from `high` on
        self.low, self.high, self.step = -1, len(self.starts), 1
        self.place = 0 if len(self.starts) <= FEW_TURNS else len(self.starts) - 1

    def probe(self) -> Conversation:
        return replace(self.conversation, turns=self.conversation.turns[self.starts[self.place] :])

    def take(self, probe: Conversation, ids: list[list[int]] | str, max_length: int) -> None:
        last = len(self.starts) - 1
        if not isinstance(ids, str) and max(map(len, ids)) <= max_length:
            self.high, self.found = self.place, Fitted(probe, self.endings, ids, self.starts[self.place])
        else:
            self.low = self.place
            if isinstance(ids, str) and (self.starts[self.place] == 0 or self.place == last):
                self.found, self.done = ids, True
                return
        if self.high > last and self.low < last:
            self.place = last
        elif self.high - self.low <= 1:
            self.done = True
        elif self.low < 0 or self.step < self.high - self.low:
            self.place, self.step = max(self.low + 1, self.high - self.step), 2 * self.step
        else:
            self.place = (self.low + self.high) // 2


def _keep_end(tokenizer, search: "_Search", max_length: int, cut_replies: bool) -> Fitted | str:
    """The last turn alone with the replies, its beginning cut by as much as must go."""
    turns = search.conversation.turns[-1:]
    conversation, endings, before = replace(search.conversation, turns=turns), search.endings, 0
    while True:
        [ids] = _tokenize(tokenizer, [(conversation, endings)])
        if isinstance(ids, str):
            return ids
        over = max(map(len, ids)) - max_length
        before = before or over
        if over <= 0:
            dropped = len(search.conversation.turns) - len(turns)
            return Fitted(conversation, endings, ids, dropped, before - over)
        if turns and turns[0].text:
            turns = (Turn(turns[0].speaker, keep_end(tokenizer, turns[0].text, over)),)
            conversation = replace(conversation, turns=turns)
        elif cut_replies and any(ending for ending, own in zip(endings, ids, strict=True) if len(own) > max_length):
            endings = tuple(
                keep_end(tokenizer, ending or "", max(0, len(own) - max_length))
                for ending, own in zip(endings, ids, strict=True)
            )
        else:
            what = "the system message" if cut_replies or endings == (None,) else "the reply"
            needed = f"{over + max_length} tokens with the template's marks and no other turn"
            return f"{what} is too long: {needed}; max_length={max_length}"


def _tokenize(tokenizer, chats: Sequence[tuple[Conversation, Endings]]) -> list[list[list[int]] | str]:
    """Token ids of the text of each ending of each chat, or why the template refuses it; one call of the tokenizer."""
    owners = [conversation for conversation, endings in chats for _ in endings]
    texts = iter(render_each(tokenizer, owners, [ending for _, endings in chats for ending in endings]))
    rendered = [[next(texts) for _ in endings] for _, endings in chats]
    errors = [next((str(text) for text in group if isinstance(text, InputError)), "") for group in rendered]
    good = [text for group, error in zip(rendered, errors, strict=True) if not error for text in group]
    ids = iter(tokenize_texts(tokenizer, good))  # type: ignore[arg-type]
    return [error or [next(ids) for _ in group] for group, error in zip(rendered, errors, strict=True)]


def _is_user(turn: Turn) -> bool:
    return ROLES.get(turn.speaker) == "user"
