"""Chats as data, and the only place that writes "User:"/"Bot:" or applies a chat template.

Design decisions:
- One mechanism renders everything: the tokenizer's chat template. A tokenizer without one gets the flat
  "User:/Bot:" template below, which is saved with it, so whoever loads the folder renders the same text.
- What replies to one conversation share is found on token ids (`share_prefix`), after each full text has been
  tokenised: sharing never changes a tokenisation.
- Turns are stripped of white space around them where they are read, and nothing else is changed: every stage sees the
  same line breaks, lists and code. Too long texts are cut in lmgym/data/truncation.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import TemplateError

from lmgym.errors import InputError, shown

FLAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'system' -%}{{ message.content }}{{ '\\n' }}"
    "{%- elif message.role == 'user' -%}{{ 'User: ' + message.content + '\\n' }}"
    "{%- elif message.role == 'assistant' -%}{{ 'Bot: ' + message.content }}"
    "{%- if not loop.last -%}{{ '\\n' }}{%- elif eos_token -%}{{ eos_token }}{%- endif -%}"
    "{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ 'Bot:' }}{%- endif -%}"
)
BOS_TEMPLATE = "{{ bos_token }}" + FLAT_TEMPLATE

ROLES = {"user": "user", "bot": "assistant", "assistant": "assistant", "human": "user", "system": "system"}
LABELS = {"user": "User", "assistant": "Bot"}
HH_MARKER = re.compile(r"(?:\A|\n\n)(Human|Assistant):")
FLAT_MARKER = re.compile(r"(?:\A|\n)(User|Bot):")


@dataclass(frozen=True)
class Turn:
    """One speaker's words; speaker is "user" or "bot"."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """Turns in order, and what was said about the bot beforehand."""

    turns: tuple[Turn, ...]
    persona: str = ""


@dataclass(frozen=True)
class Replies:
    """Replies to one conversation as token ids: their common prefix once, and a suffix (never empty) a reply."""

    prefix: list[int]
    suffixes: list[list[int]]
    dropped_turns: int = 0
    """oldest turns that were left out: see lmgym/data/truncation.py"""
    shortened: int = 0
    """tokens that the last turn lost, because it alone is too long"""

    @property
    def truncated(self) -> bool:
        """Whether anything was left out."""
        return bool(self.dropped_turns or self.shortened)

    @property
    def tokens(self) -> int:
        """Tokens that a forward must see: the prefix once and every suffix."""
        return len(self.prefix) + sum(map(len, self.suffixes))


def messages(conversation: Conversation, reply: str | None = None) -> list[dict[str, str]]:
    """The conversation, and a bot's reply to it, as a chat template takes them."""
    rows = [{"role": "system", "content": conversation.persona}] if conversation.persona else []
    rows += [{"role": ROLES[turn.speaker], "content": turn.text} for turn in conversation.turns]
    if reply is not None:
        rows.append({"role": "assistant", "content": reply})
    return rows


def reply_text(text: str) -> str:
    """A reply as every stage sees it: without white space around it, its line breaks and indentation as they are."""
    return text.strip()


def from_messages(rows: Sequence[dict[str, str]]) -> Conversation:
    """A conversation out of chat messages, each stripped as a transcript's turns are.

    Raises ValueError for an unknown role or a message that is not text.
    """
    turns, persona = [], []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"message {number} is {shown(row)}; needed: an object with role and content")
        said, content = row.get("role"), row.get("content")
        role = ROLES.get(said.lower()) if isinstance(said, str) else None
        if role is None or not isinstance(content, str) or row.get("tool_calls"):
            raise ValueError(f"message {number} {_unsupported(row, role)}")
        if role == "system":
            persona.append(content.strip())
        else:
            turns.append(Turn("user" if role == "user" else "bot", content.strip()))
    return Conversation(tuple(turns), "\n".join(persona))


def _unsupported(row: dict, role: str | None) -> str:
    """The part of a message that cannot be read, in words."""
    content = row.get("content")
    if row.get("tool_calls"):
        return "calls tools, which is not supported; needed: messages of text"
    if role is None:
        found = f"has the role {shown(row['role'])}, which is not supported" if row.get("role") else "has no role"
        return f"{found}; needed: user, assistant or system"
    if isinstance(content, list):
        return f"has content in parts ({shown(content)}), which is not supported; needed: content of text"
    found = "has no content" if content is None else f"has the content {shown(content)}"
    return f"{found}; needed: content of text"


def from_transcript(text: str) -> Conversation:
    """A conversation out of an hh transcript ("\\n\\nHuman: ...") or a flat one ("User: ...\\nBot: ...").

    Text before the first marker is the persona. A trailing empty bot turn ("\\nBot:") is left out.
    Text without any marker is one user turn.
    """
    marker = HH_MARKER if HH_MARKER.search(text) else FLAT_MARKER
    pieces = marker.split(text)
    if len(pieces) == 1:
        return Conversation((Turn("user", text.strip()),))
    turns = [
        Turn("user" if ROLES[speaker.lower()] == "user" else "bot", words.strip())
        for speaker, words in zip(pieces[1::2], pieces[2::2], strict=True)
    ]
    if turns[-1] == Turn("bot", ""):
        turns.pop()
    return Conversation(tuple(turns), pieces[0].strip())


def to_transcript(conversation: Conversation, reply: str | None = None) -> str:
    """What `from_transcript` reads: the flat text, without a reply ending in "\\nBot:" where one would begin."""
    lines = [conversation.persona] if conversation.persona else []
    lines += [f"{LABELS[ROLES[turn.speaker]]}: {turn.text}" for turn in conversation.turns]
    return "\n".join([*lines, "Bot:" if reply is None else f"Bot: {reply}"])


def ensure_template(tokenizer) -> None:
    """Gives a tokenizer without a chat template the flat one, with a BOS where the tokenizer itself would add one."""
    if tokenizer.chat_template is None:
        first = tokenizer("x").input_ids[:1]
        adds_bos = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
        tokenizer.chat_template = BOS_TEMPLATE if adds_bos and not _adds_classifier_token(tokenizer) else FLAT_TEMPLATE


def flat_template_note(tokenizer) -> list[str]:
    """A line on how chats are written, where the tokenizer has no template of its own."""
    if tokenizer.chat_template not in (FLAT_TEMPLATE, BOS_TEMPLATE):
        return []
    return [
        f"{tokenizer.name_or_path} has no chat template but the flat one: turns are written as `User: ...` and "
        "`Bot: ...`, as in what is saved; for another form put a chat_template.jinja beside the tokenizer"
    ]


def _adds_classifier_token(tokenizer) -> bool:
    return tokenizer.cls_token_id is not None and tokenizer("x").input_ids[0] == tokenizer.cls_token_id


def render(tokenizer, conversation: Conversation, reply: str | None = None) -> str:
    """The text that a model sees; without a reply it ends where the bot's reply begins.

    Raises InputError where the tokenizer's template refuses the conversation, as some refuse a system message.
    """
    rows = messages(conversation, reply)
    try:
        return tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=reply is None)
    except TemplateError as error:
        roles = ", ".join(row["role"] for row in rows)
        raise InputError(
            f"the chat template of {tokenizer.name_or_path} refuses a conversation of {roles}: {error}; needed: a "
            "template for these roles (chat_template.jinja beside the tokenizer), or data without them"
        ) from error


def render_all(tokenizer, conversations: Sequence[Conversation], replies: Sequence[str] | None = None) -> list[str]:
    """`render` of reply i to conversation i, or of the conversations alone. Raises InputError as `render` does."""
    texts = []
    for text in render_each(tokenizer, conversations, replies):
        if isinstance(text, InputError):
            raise text
        texts.append(text)
    return texts


def render_each(
    tokenizer, conversations: Sequence[Conversation], replies: Sequence[str | None] | None = None
) -> list[str | InputError]:
    """The same with an error in the place of each conversation that the template refuses.

    The flat templates are written out here, ten times as fast as by jinja.
    """
    given: Sequence[str | None] = [None] * len(conversations) if replies is None else replies
    chats = list(zip(conversations, given, strict=True))
    if tokenizer.chat_template not in (FLAT_TEMPLATE, BOS_TEMPLATE):
        return [_render_or_error(tokenizer, c, r) for c, r in chats]
    first = (tokenizer.bos_token or "") if tokenizer.chat_template == BOS_TEMPLATE else ""
    eos = tokenizer.eos_token or ""
    return [
        # the template puts an eos behind a bot's turn that ends a prompt
        _render_or_error(tokenizer, c)
        if r is None and _ends_with_bot(c)
        else first + to_transcript(c, r) + ("" if r is None else eos)
        for c, r in chats
    ]


def _render_or_error(tokenizer, conversation: Conversation, reply: str | None = None) -> str | InputError:
    try:
        return render(tokenizer, conversation, reply)
    except InputError as error:
        return error


def _ends_with_bot(conversation: Conversation) -> bool:
    return bool(conversation.turns) and ROLES[conversation.turns[-1].speaker] == "assistant"


def tokenize_texts(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of rendered texts. Only encoders get their [CLS] and [SEP]: a template writes its own specials."""
    if not texts:
        return []
    special = _adds_classifier_token(tokenizer)
    if not tokenizer.is_fast:
        return tokenizer(texts, add_special_tokens=special, verbose=False).input_ids
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # a call of the tokenizer itself leaves its own settings behind
    backend.no_padding()
    # ids alone: without the offsets and masks that a call makes it takes three quarters of the time
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=special)]


def common_prefix(sequences: Sequence[Sequence[int]]) -> int:
    """How many leading ids all sequences share, leaving each at least one id of its own."""
    shortest = min(map(len, sequences)) - 1
    if len(sequences) == 1:
        return shortest
    first = np.asarray(sequences[0][:shortest])
    for other in sequences[1:]:
        different = np.flatnonzero(first != np.asarray(other[: len(first)]))
        first = first[: different[0]] if len(different) else first
    return len(first)


def share_prefix(sequences: Sequence[list[int]], dropped_turns: int = 0, shortened: int = 0) -> Replies:
    """Full token sequences as one shared prefix and a suffix each."""
    shared = common_prefix(sequences)
    return Replies(list(sequences[0][:shared]), [list(ids[shared:]) for ids in sequences], dropped_turns, shortened)
