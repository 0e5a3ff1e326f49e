"""Chats as data, and the only place that writes "User:"/"Bot:" or applies a chat template.

Design decisions:
- Everything is rendered by the tokenizer's chat template. A tokenizer without one gets the flat "User:/Bot:" template
  below, which is saved with it, so that the folder renders the same text everywhere.
- The common prefix of replies to a conversation is found on token ids (`share_prefix`), after each full text has been
  tokenised: sharing never changes a tokenisation.
- Texts are read in lmgym/messages.py; those that are too long are cut in lmgym/data/truncation.py.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.errors import InputError, one_line, shown
from lmgym.templates import BOS_TEMPLATE, FLAT_TEMPLATE, apply_template, apply_template_to_all, why_failed
from lmgym.tool_calls import parts_in_use, parts_left_out

ROLES = {"user": "user", "bot": "assistant", "assistant": "assistant", "human": "user", "system": "system"}
ROLES |= {"tool": "tool", "developer": "system", "function": "tool", "ipython": "tool", "observation": "tool"}
ROLES |= dict.fromkeys(("gpt", "chatgpt", "model", "chatbot", "ai"), "assistant")
"""roles of messages, and speakers of turns, as roles of chat templates"""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""names of the text that a bot thought before its reply"""
LABELS = {"user": "User", "assistant": "Bot", "tool": "Tool"}


@dataclass(frozen=True, slots=True)
class Turn:
    """A message; speaker is "user", "bot", "tool" (the text is a call's result), or "system" behind other turns."""

    speaker: str
    text: str
    extra: str = ""
    """further fields of its message as JSON: the bot's `tool_calls` and `reasoning_content`, a tool's `name` and
    `tool_call_id`"""
    learned: bool = field(default=True, compare=False)
    """False of a bot's turn that SFT takes as context only"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order, and a description of the bot."""

    turns: tuple[Turn, ...]
    persona: str = ""
    tools: str = ""
    """the functions that the bot may call, as JSON"""
    is_text: bool = field(default=False, compare=False, repr=False)
    """read from a text, plain or a transcript, and not from messages: some reward functions ask"""


Reply = str | Turn
"""a reply to a conversation: text, or a turn of the bot that calls tools or has reasoning"""


@dataclass(frozen=True, slots=True)
class Replies:
    """Replies to one conversation as token ids: their common prefix once, and a suffix (never empty) per reply."""

    prefix: list[int]
    suffixes: list[list[int]]
    dropped_turns: int = 0
    """oldest turns that were left out: see lmgym/data/truncation.py"""
    shortened: int = 0
    """tokens cut from the last turn, which alone was too long"""
    ends: tuple[int, ...] = ()
    """the last token of each reply, behind its suffix; empty: the first of `turn_ends`"""
    realigned: bool = False
    """a reply was tokenised anew behind the prompt: see lmgym/data/tokenization.py"""

    @property
    def truncated(self) -> bool:
        """True if anything was left out."""
        return bool(self.dropped_turns or self.shortened)

    @property
    def tokens(self) -> int:
        """Tokens of a forward: the prefix once and every suffix."""
        return len(self.prefix) + sum(map(len, self.suffixes))


def messages(conversation: Conversation, reply: Reply | None = None) -> list[dict[str, Any]]:
    """Chat messages, as a template takes them, of a conversation and a reply to it."""
    rows = [{"role": "system", "content": conversation.persona}] if conversation.persona else []
    rows += [_message(turn) for turn in conversation.turns]
    if reply is not None:
        rows.append(_message(reply if isinstance(reply, Turn) else Turn("bot", reply)))
    return rows


def _message(turn: Turn) -> dict[str, Any]:
    message = {"role": ROLES[turn.speaker], "content": turn.text}
    return message | json.loads(turn.extra) if turn.extra else message


def as_reply(turn: Turn) -> Reply:
    """A turn of the bot as a reply: its text, or the turn if it calls tools or has reasoning."""
    return turn if turn.extra else turn.text


def as_turn(reply: Reply) -> Turn:
    """A reply as the bot's turn."""
    return reply if isinstance(reply, Turn) else Turn("bot", reply)


def words_of(reply: Reply) -> str:
    """The text of a reply, with its calls and reasoning as JSON before it; equal for equal replies."""
    return reply if isinstance(reply, str) else reply.extra + reply.text


def reasoning_of(turn: Turn) -> str:
    """The bot's reasoning before its reply; empty if it has none."""
    return json.loads(turn.extra).get(REASONING[0], "") if turn.extra else ""


def reply_text(text: str) -> str:
    """A reply as every stage sees it: without surrounding white space, with its line breaks and indentation."""
    return text.strip()


def to_transcript(conversation: Conversation, reply: str | None = None) -> str:
    """The flat transcript, which `from_transcript` reads; without a reply it ends in "\\nBot:".

    Calls and results of tools are in it without their functions' names: it shows them, and no model reads it.
    """
    lines = [conversation.persona] if conversation.persona else []
    lines += [_line(turn) for turn in conversation.turns]
    return "\n".join([*lines, "Bot:" if reply is None else f"Bot: {reply}"])


def _line(turn: Turn) -> str:
    return turn.text if turn.speaker == "system" else f"{LABELS[ROLES[turn.speaker]]}: {turn.text}"


def ensure_template(tokenizer) -> None:
    """Set the flat template on a tokenizer without one, with a BOS if the tokenizer itself adds one."""
    if tokenizer.chat_template is None:
        first = tokenizer("x").input_ids[:1]
        adds_bos = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
        tokenizer.chat_template = BOS_TEMPLATE if adds_bos and not has_special_ends(tokenizer) else FLAT_TEMPLATE


def flat_template_note(tokenizer) -> list[str]:
    """A line on the format of chats if the tokenizer has no template of its own."""
    if tokenizer.chat_template not in (FLAT_TEMPLATE, BOS_TEMPLATE):
        return []
    return [
        f"{tokenizer.name_or_path} has no chat template but the flat one: turns are written as `User: ...` and "
        "`Bot: ...`, as in what is saved; for another form put a chat_template.jinja beside the tokenizer"
    ]


def has_special_ends(tokenizer) -> bool:
    """True of an encoder's tokenizer, which puts [CLS] and [SEP] around a text."""
    return tokenizer.cls_token_id is not None and tokenizer("x").input_ids[0] == tokenizer.cls_token_id


def render(tokenizer, conversation: Conversation, reply: Reply | None = None) -> str:
    """The text that a model sees; without a reply it ends where the bot's reply begins.

    Raises InputError if the tokenizer's template refuses the conversation, as some refuse a system message, fails on
    it, or would leave out what it has of tools.
    """
    rows = messages(conversation, reply)
    tools = json.loads(conversation.tools) if conversation.tools else None
    if lost := parts_left_out(tokenizer, parts_in_use(rows, tools)):
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} leaves out {' and '.join(lost)}; needed: a template that "
            "writes them (chat_template.jinja beside the tokenizer), or rows without them"
        )
    try:
        text = apply_template(tokenizer, rows, tools, prompt=reply is None)
    except Exception as error:  # a template can raise anything
        roles = one_line(", ".join(row["role"] for row in rows), 60)
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} refuses a conversation of {roles}: {why_failed(error)}; "
            "needed: a template for these roles (chat_template.jinja beside the tokenizer), or data without them"
        ) from error
    if unsaid := next(
        (turn for turn in conversation.turns if turn.speaker == "system" and turn.text not in text), None
    ):
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} leaves out a system message behind the first turn "
            f"({shown(unsaid.text, 60)}); needed: a template that writes it, or data without it"
        )
    return text


def render_all(tokenizer, conversations: Sequence[Conversation], replies: Sequence[Reply] | None = None) -> list[str]:
    """`render` of conversation i with reply i, or of the conversations alone. Raises InputError as `render` does."""
    texts = []
    for text in render_each(tokenizer, conversations, replies):
        if isinstance(text, InputError):
            raise text
        texts.append(text)
    return texts


def render_each(
    tokenizer, conversations: Sequence[Conversation], replies: Sequence[Reply | None] | None = None
) -> list[str | InputError]:
    """`render_all` with an error in the place of each conversation that the template refuses.

    The flat templates are written out here, ten times as fast as by jinja; others render in batches.
    """
    given: Sequence[Reply | None] = [None] * len(conversations) if replies is None else replies
    flat = tokenizer.chat_template in (FLAT_TEMPLATE, BOS_TEMPLATE)
    bos = (tokenizer.bos_token or "") if tokenizer.chat_template == BOS_TEMPLATE else ""
    eos = tokenizer.eos_token or ""
    texts: list[str | InputError] = [""] * len(conversations)
    batches: dict[bool, list[int]] = {True: [], False: []}
    for i, (conversation, reply) in enumerate(zip(conversations, given, strict=True)):
        turns, tools = conversation.turns, has_tools(conversation)
        # the template adds an eos after a bot's turn that ends a prompt
        ends_with_bot = reply is None and turns and ROLES[turns[-1].speaker] == "assistant"
        if flat and not ends_with_bot and not isinstance(reply, Turn) and not tools:
            texts[i] = bos + to_transcript(conversation, reply) + ("" if reply is None else eos)
        elif tools or any(turn.speaker == "system" for turn in turns):
            texts[i] = _text_or_error(tokenizer, conversation, reply)
        else:
            batches[reply is None].append(i)
    for is_prompt, places in batches.items():
        rows = [messages(conversations[i], given[i]) for i in places]
        try:
            found: list[Any] = list(apply_template_to_all(tokenizer, rows, is_prompt))
        except Exception:  # of one of them
            found = [_text_or_error(tokenizer, conversations[i], given[i]) for i in places]
        for i, text in zip(places, found, strict=True):
            texts[i] = text
    return texts


def _text_or_error(tokenizer, conversation: Conversation, reply: Reply | None) -> str | InputError:
    try:
        return render(tokenizer, conversation, reply)
    except InputError as error:
        return error


def has_tools(conversation: Conversation) -> bool:
    """True if only a chat template with tools can write the conversation."""
    return bool(conversation.tools) or any(turn.extra or turn.speaker == "tool" for turn in conversation.turns)


def tokenize_texts(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of rendered texts. Only encoders get special tokens ([CLS], [SEP]): a template writes its own."""
    if not texts:
        return []
    special = has_special_ends(tokenizer)
    if not tokenizer.is_fast:
        return tokenizer(texts, add_special_tokens=special, verbose=False).input_ids
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # earlier calls of the tokenizer may have set these
    backend.no_padding()
    try:
        # only ids, without offsets and masks: three quarters of the time of a call
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=special)]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, which has no class to import
            raise
        raise InputError(
            f"{tokenizer.name_or_path}/tokenizer.json fails on a text: {one_line(str(error), 120)}; needed: another "
            "pattern in its pre_tokenizer or normalizer"
        ) from error


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """The number of leading ids that all sequences share, leaving each at least one id of its own."""
    shortest = min(map(len, sequences)) - 1
    if len(sequences) == 1:
        return shortest
    first = np.asarray(sequences[0][:shortest])
    for other in sequences[1:]:
        different = np.flatnonzero(first != np.asarray(other[: len(first)]))
        first = first[: different[0]] if len(different) else first
    return len(first)


def share_prefix(
    sequences: Sequence[list[int]], dropped_turns: int = 0, shortened: int = 0, realigned: bool = False
) -> Replies:
    """Full token sequences as their common prefix and a suffix each."""
    shared = common_prefix(sequences)
    suffixes = [list(ids[shared:]) for ids in sequences]
    return Replies(list(sequences[0][:shared]), suffixes, dropped_turns, shortened, realigned=realigned)
