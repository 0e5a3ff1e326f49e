"""Prompts and replies as token ids: the same ids for SFT, preferences, reward models, scoring and generation.

Design decisions:
- The ids of a prompt are those that generation is given: of the rendered prompt, up to where the reply begins.
- The ids of a reply are the rest of the whole text's ids, where these begin with the prompt's. Where they do not, as
  when a token lies across the border, the prompt's ids stay and the reply is tokenised anew behind them.
- Encoders and templates that do not begin prompt and reply with the prompt have whole texts only: a scorer reads them,
  a policy cannot.
- A reply whose text the template changes or leaves out is refused, unless the caller allows it.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.data.thoughts import Opening, missing_thought, opening
from lmgym.errors import InputError, shown
from lmgym.text import Conversation, Reply, Turn, has_special_ends, reasoning_of, render_each, tokenize_texts

Endings = tuple[Reply, ...] | tuple[None]
"""replies that each end the conversation, or (None,): the place where a reply begins"""
NO_PROMPT_PREFIX = "the tokenizer's template does not begin prompt and reply with the prompt; needed: one that appends"
ACROSS = "the tokenizer joins the end of the prompt and the beginning of the reply; needed: a template that parts them"
THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


@dataclass(frozen=True)
class ChatIds:
    """Token ids of a conversation and what follows it."""

    prompt: list[int]
    """as generation is given it; empty if whole texts do not begin with it"""
    rests: list[list[int]]
    """the rest of the whole text of each reply; of a prompt alone one that is empty"""
    has_prompt: bool = True
    """False if `rests` are whole texts"""
    realigned: bool = False
    """a reply was tokenised anew behind the prompt"""

    @property
    def wholes(self) -> list[list[int]]:
        """The whole text of each reply, or the prompt alone."""
        return [self.prompt + rest for rest in self.rests]

    @property
    def longest(self) -> int:
        """Tokens of the longest whole text."""
        return len(self.prompt) + max(map(len, self.rests))


@dataclass(frozen=True)
class _Texts:
    """The rendered texts of a chat; `prompt` is None where only whole texts count."""

    prompt: str | None
    wholes: list[str]


def tokenize(
    tokenizer, chats: Sequence[tuple[Conversation, Endings]], may_lose_text: bool = False, as_sampled: bool = True
) -> list[ChatIds | str]:
    """Token ids of each conversation with each of its replies; a string is the reason why it has none.

    `may_lose_text`: replies may be changed by the template, and be without the thought that it opens. With `as_sampled`
    a reply goes on where the generation prompt opens a thought (thoughts.py); else texts are as the template has them.
    All texts go through one call of the tokenizer.
    """
    rendered = _render(tokenizer, chats, may_lose_text, opening(tokenizer) if as_sampled else None)
    texts: list[str] = []
    for found in rendered:
        if isinstance(found, _Texts):
            texts += [*([] if found.prompt is None else [found.prompt]), *found.wholes]
    ids = iter(tokenize_texts(tokenizer, texts))
    chats_ids: list[ChatIds | str] = []
    for found in rendered:
        if isinstance(found, str):
            chats_ids.append(found)
            continue
        prompt = None if found.prompt is None else next(ids)
        chats_ids.append(_join(tokenizer, found, prompt, [next(ids) for _ in found.wholes]))
    return chats_ids


def _render(
    tokenizer, chats: Sequence[tuple[Conversation, Endings]], may_lose_text: bool, opened: Opening | None
) -> list[_Texts | str]:
    conversations, endings = list[Conversation](), list[Reply | None]()
    for conversation, replies in chats:
        given = [reply for reply in replies if reply is not None]
        if opened and opened.added:  # the template writes no thoughts
            given = [opened.split(reply)[1] for reply in given]
        conversations += [conversation] * (1 + len(given))
        endings += [None, *given]
    texts = iter(render_each(tokenizer, conversations, endings))
    return [_texts_of(tokenizer, replies, texts, may_lose_text, opened) for _, replies in chats]


def _texts_of(tokenizer, replies: Endings, texts, may_lose_text: bool, opened: Opening | None) -> _Texts | str:
    """The next texts of the iterator as a chat's, or why it cannot be read."""
    prompt = next(texts)
    given = [reply for reply in replies if reply is not None]
    found = [next(texts) for _ in given]
    if opened and given:
        thoughts, answers = zip(*map(opened.split, given), strict=True)
        if None in thoughts and not may_lose_text:
            return missing_thought(opened)
        if opened.added and not isinstance(prompt, InputError):
            found = [
                text if isinstance(text, InputError) else _behind_opening(opened, prompt, text, thought or "")
                for text, thought in zip(found, thoughts, strict=True)
            ]
            given = list(answers)
    if refused := next((text for text in found or [prompt] if isinstance(text, InputError)), None):
        return str(refused)
    if not found:
        return _Texts(str(prompt), [])
    wholes = list(map(str, found))
    begins = not isinstance(prompt, InputError) and all(whole.startswith(prompt) for whole in wholes)
    if not may_lose_text:
        for reply, whole in zip(given, wholes, strict=True):
            if lost := lost_text(reply, _behind(str(prompt), whole)):
                return lost
    return _Texts(str(prompt) if begins and not has_special_ends(tokenizer) else None, wholes)


def _behind_opening(opened: Opening, prompt: str, whole: str, thought: str) -> str:
    """The whole text with a thought where the generation prompt opens one."""
    before = prompt.removesuffix(opened.added)
    return prompt + opened.written(thought) + whole.removeprefix(before) if whole.startswith(before) else whole


def _behind(prompt: str, whole: str) -> str:
    """The whole text without the beginning that it shares with the prompt's."""
    if whole.startswith(prompt):
        return whole[len(prompt) :]
    return whole[next((i for i, (a, b) in enumerate(zip(prompt, whole, strict=False)) if a != b), len(whole)) :]


def lost_text(reply: Reply, written: str) -> str:
    """Why the text that the template writes does not hold the reply, apart from trimmed blanks; empty if it does."""
    text = (reply.text if isinstance(reply, Turn) else reply).strip()
    if text not in written:
        thoughts = [thought.strip() for thought in THOUGHT.findall(text)]
        without = THOUGHT.sub("", text).strip()
        if thoughts and without in written:
            kept = all(thought in written for thought in thoughts)  # some write other blanks around it
            needed = "needed: a template that keeps it"
            return "" if kept else f"the chat template removes the text between <think> and </think>; {needed}"
        return f"the chat template changes the reply or leaves it out: {shown(text)} is not in what it writes"
    if isinstance(reply, Turn) and reasoning_of(reply).strip() not in written:
        return "the chat template writes no reasoning of the reply; needed: one that does, or rows without reasoning"
    return ""


def _join(tokenizer, texts: _Texts, prompt: list[int] | None, wholes: list[list[int]]) -> ChatIds | str:
    if prompt is None:
        return ChatIds([], wholes, has_prompt=False)
    if not wholes:
        return ChatIds(prompt, [[]])
    rests, realigned = list[list[int]](), False
    for text, whole in zip(texts.wholes, wholes, strict=True):
        if whole[: len(prompt)] == prompt:
            rests.append(whole[len(prompt) :])
            continue
        assert texts.prompt is not None
        behind = tokenize_behind(tokenizer, prompt, text[len(texts.prompt) :])
        if behind is None:
            return ACROSS
        rests.append(behind)
        realigned = True
    return ChatIds(prompt, rests, realigned=realigned)


def tokenize_behind(tokenizer, before: list[int], text: str) -> list[int] | None:
    """Ids of a text that continues `before`, whose ids stay as they are; None if no tokenisation decodes to the text.

    The text is tokenised behind an anchor, whose ids are taken away again: alone, some tokenizers would begin it with
    a space. Of a tokenizer whose decoded text is another, which cannot be checked, they are those of the text alone.
    """
    if not text:
        return []
    start = _decode(tokenizer, before)
    wanted = _normal(start + text)
    for anchor in (tokenizer.eos_token or "", "\n", ":", "x", "."):
        [alone, both] = tokenize_texts(tokenizer, [anchor, anchor + text])
        ids = both[len(alone) :]
        if both[: len(alone)] == alone and _decode(tokenizer, before + ids) == wanted:
            return ids
    [ids, whole] = tokenize_texts(tokenizer, [text, start + text])
    is_faithful = _decode(tokenizer, whole) == wanted
    return None if is_faithful and _decode(tokenizer, before + ids) != wanted else ids


def _decode(tokenizer, ids: list[int]) -> str:
    """The text of ids, in the form in which texts are compared: a tokenizer may normalise what it reads."""
    return _normal(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text)
