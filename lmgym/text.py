"""Chats as data, and the only place that writes "User:"/"Bot:" or applies a chat template.

Design decisions:
- Everything is rendered by the tokenizer's chat template. A tokenizer without one gets the flat "User:/Bot:" template
  below, which is saved with it, so that the folder renders the same text everywhere.
- The common prefix of replies to a conversation is found on token ids (`share_prefix`), after each full text has been
  tokenised: sharing never changes a tokenisation.
- Turns are stripped of surrounding white space when they are read, and not changed otherwise: every stage sees the same
  line breaks, lists and code. Texts that are too long are cut in lmgym/data/truncation.py.
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
    """A message; speaker is "user" or "bot"."""

    speaker: str
    text: str


@dataclass(frozen=True)
class Conversation:
    """Turns in order, and a description of the bot."""

    turns: tuple[Turn, ...]
    persona: str = ""


@dataclass(frozen=True)
class Replies:
    """Replies to one conversation as token ids: their common prefix once, and a suffix (never empty) per reply."""

    prefix: list[int]
    suffixes: list[list[int]]
    dropped_turns: int = 0
    """oldest turns that were left out: see lmgym/data/truncation.py"""
    shortened: int = 0
    """tokens cut from the last turn, which alone was too long"""

    @property
    def truncated(self) -> bool:
        """True if anything was left out."""
        return bool(self.dropped_turns or self.shortened)

    @property
    def tokens(self) -> int:
        """Tokens of a forward: the prefix once and every suffix."""
        return len(self.prefix) + sum(map(len, self.suffixes))


def messages(conversation: Conversation, reply: str | None = None) -> list[dict[str, str]]:
    """Chat messages, as a template takes them, of a conversation and a reply to it."""
    rows = [{"role": "system", "content": conversation.persona}] if conversation.persona else []
    rows += [{"role": ROLES[turn.speaker], "content": turn.text} for turn in conversation.turns]
    if reply is not None:
        rows.append({"role": "assistant", "content": reply})
    return rows


def reply_text(text: str) -> str:
    """A reply as every stage sees it: without surrounding white space, with its line breaks and indentation."""
    return text.strip()


def from_messages(rows: Sequence[dict[str, str]]) -> Conversation:
    """The conversation of chat messages, stripped like a transcript's turns.

    Raises ValueError for an unknown role or a message that is not text.
    """
    turns, persona = [], []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise ValueError(f"message {number} is {shown(row)}; needed: an object with role and content")
        name, content = row.get("role"), row.get("content")
        role = ROLES.get(name.lower()) if isinstance(name, str) else None
        if role is None or not isinstance(content, str) or row.get("tool_calls"):
            raise ValueError(f"message {number} {_unsupported(row, role)}")
        if role == "system":
            persona.append(content.strip())
        else:
            turns.append(Turn("user" if role == "user" else "bot", content.strip()))
    return Conversation(tuple(turns), "\n".join(persona))


def _unsupported(row: dict, role: str | None) -> str:
    """The reason that a message cannot be read."""
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
    """The conversation of an hh transcript ("\\n\\nHuman: ...") or a flat one ("User: ...\\nBot: ...").

    Text before the first marker is the persona. A trailing empty bot turn ("\\nBot:") is left out. Text without a
    marker is one user turn.
    """
    marker = HH_MARKER if HH_MARKER.search(text) else FLAT_MARKER
    pieces = marker.split(text)
    if len(pieces) == 1:
        return Conversation((Turn("user", text.strip()),))
    speakers = ["user" if ROLES[marker.lower()] == "user" else "bot" for marker in pieces[1::2]]
    turns = [Turn(speaker, text.strip()) for speaker, text in zip(speakers, pieces[2::2], strict=True)]
    if turns[-1] == Turn("bot", ""):
        turns.pop()
    return Conversation(tuple(turns), pieces[0].strip())


def to_transcript(conversation: Conversation, reply: str | None = None) -> str:
    """The flat transcript, which `from_transcript` reads; without a reply it ends in "\\nBot:"."""
    lines = [conversation.persona] if conversation.persona else []
    lines += [f"{LABELS[ROLES[turn.speaker]]}: {turn.text}" for turn in conversation.turns]
    return "\n".join([*lines, "Bot:" if reply is None else f"Bot: {reply}"])


def ensure_template(tokenizer) -> None:
    """Set the flat template on a tokenizer without one, with a BOS if the tokenizer itself adds one."""
    if tokenizer.chat_template is None:
        first = tokenizer("x").input_ids[:1]
        adds_bos = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
        tokenizer.chat_template = BOS_TEMPLATE if adds_bos and not _adds_classifier_token(tokenizer) else FLAT_TEMPLATE


def flat_template_note(tokenizer) -> list[str]:
    """A line on the format of chats if the tokenizer has no template of its own."""
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

    Raises InputError if the tokenizer's template refuses the conversation, as some refuse a system message.
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
    """`render` of conversation i with reply i, or of the conversations alone. Raises InputError as `render` does."""
    texts = []
    for text in render_each(tokenizer, conversations, replies):
        if isinstance(text, InputError):
            raise text
        texts.append(text)
    return texts


def render_each(
    tokenizer, conversations: Sequence[Conversation], replies: Sequence[str | None] | None = None
) -> list[str | InputError]:
    """`render_all` with an error in the place of each conversation that the template refuses.

    The flat templates are written out here, ten times as fast as by jinja.
    """
    flat = tokenizer.chat_template in (FLAT_TEMPLATE, BOS_TEMPLATE)
    bos = (tokenizer.bos_token or "") if tokenizer.chat_template == BOS_TEMPLATE else ""
    eos = tokenizer.eos_token or ""

    def text_or_error(conversation: Conversation, reply: str | None) -> str | InputError:
        turns = conversation.turns
        # the template adds an eos after a bot's turn that ends a prompt
        ends_with_bot = reply is None and turns and ROLES[turns[-1].speaker] == "assistant"
        if flat and not ends_with_bot:
            return bos + to_transcript(conversation, reply) + ("" if reply is None else eos)
        try:
            return render(tokenizer, conversation, reply)
        except InputError as error:
            return error

    given: Sequence[str | None] = [None] * len(conversations) if replies is None else replies
    return [text_or_error(conversation, reply) for conversation, reply in zip(conversations, given, strict=True)]


def tokenize_texts(tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids of rendered texts. Only encoders get special tokens ([CLS], [SEP]): a template writes its own."""
    if not texts:
        return []
    special = _adds_classifier_token(tokenizer)
    if not tokenizer.is_fast:
        return tokenizer(texts, add_special_tokens=special, verbose=False).input_ids
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # earlier calls of the tokenizer may have set these
    backend.no_padding()
    # only ids, without offsets and masks: three quarters of the time of a call
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=special)]


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


def share_prefix(sequences: Sequence[list[int]], dropped_turns: int = 0, shortened: int = 0) -> Replies:
    """Full token sequences as their common prefix and a suffix each."""
    shared = common_prefix(sequences)
    return Replies(list(sequences[0][:shared]), [list(ids[shared:]) for ids in sequences], dropped_turns, shortened)
