"""Prompts as token ids, truncated to the room that the context leaves beside a reply.

Design decisions:
- The prompt of a later turn is the ids of the turn before, as they were read and sampled, and those of the text that
  follows; the whole is tokenised again only where its text does not continue what was said, as where a template
  rewrites history, or where it is too long. Only the end of the old text is tokenised beside the new one.
- Texts are compared without the white space around a reply, which environments strip: what was sampled stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.data.prompts import Task
from lmgym.data.tokenization import tokenize_behind
from lmgym.data.truncation import truncate
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling
from lmgym.text import Conversation, render_all, tokenize_texts

MEASURED = 256  # prompts that are tokenised to find the longest
CONTEXT = 64  # characters before a text that decide how it begins as tokens
CHECKED = 32  # ids before a text that it is decoded with


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as the policy reads it."""

    ids: list[int]
    text: str
    """the rendered text of `ids`"""
    dropped_turns: int = 0
    """oldest turns that were left out"""
    shortened: int = 0
    """tokens cut from the beginning of the last turn, or of a plain text"""
    appended: bool = False
    """it begins with the ids of the turn before; the white space around replies is as sampled, not as in `text`"""

    @property
    def truncated(self) -> bool:
        """True if anything was left out."""
        return bool(self.dropped_turns or self.shortened)


@dataclass(frozen=True)
class Said:
    """The whole prompt of an agent's last turn, and its reply."""

    prompt: list[int]
    text: str
    """the rendered text of `prompt`"""
    completion: Completion


@dataclass(frozen=True)
class _Continuation:
    """A text as what was said and the rest."""

    ids: list[int]
    """of the prompt before and the reply"""
    context: str
    """the end of their text"""
    rest: str
    """what follows"""


def room_for_prompts(context: int, sampling: Sampling, max_prompt: int | None = None) -> int:
    """Most tokens of a prompt: the context less a reply, or `max_prompt`. Raises InputError if there are none."""
    left = context - sampling.max_new_tokens
    if left < 1:
        raise InputError(
            f"max_new_tokens={sampling.max_new_tokens} leaves no room for a prompt in a context of "
            f"{context}; needed: fewer new tokens, or a model with a longer context"
        )
    if max_prompt is not None and not 1 <= max_prompt <= left:
        raise InputError(
            f"max_prompt={max_prompt}; needed: 1 to {left}, the context of {context} less "
            f"max_new_tokens={sampling.max_new_tokens}"
        )
    return left if max_prompt is None else max_prompt


def fit_prompts(
    tokenizer, prompts: Sequence[Conversation | str], room: int, before: Sequence[Said | None] = ()
) -> list[FittedPrompt]:
    """Prompts of at most `room` tokens each: conversations rendered by the chat template, texts as they are.

    A prompt that continues what its agent read and said `before` (one of each prompt, or none at all) begins with those
    ids. A conversation that is too long loses its oldest turns (data/truncation.py), a text its beginning after a BOS.
    Raises InputError if nothing of a prompt fits.
    """
    texts = _rendered(tokenizer, prompts)
    appended = _append(tokenizer, texts, before, room) if any(before) else [None] * len(texts)
    whole = iter(tokenize_texts(tokenizer, [text for text, ids in zip(texts, appended, strict=True) if ids is None]))
    tokenized = [next(whole) if ids is None else ids for ids in appended]
    long = [
        prompt
        for prompt, ids in zip(prompts, tokenized, strict=True)
        if len(ids) > room and not isinstance(prompt, str)
    ]
    truncated = iter(truncate(tokenizer, long, None, room))
    fitted = []
    for prompt, text, ids, kept in zip(prompts, texts, tokenized, appended, strict=True):
        if len(ids) <= room:
            fitted.append(FittedPrompt(ids, text, appended=kept is not None))
        elif isinstance(prompt, str):
            fitted.append(_end_of_text(tokenizer, ids, room))
        else:
            row = next(truncated)
            if isinstance(row, str):
                raise InputError(f"a prompt does not fit into {room} tokens: {row}; shorten it, or leave more room")
            [shown] = render_all(tokenizer, [row.conversation])
            fitted.append(FittedPrompt(row.ids[0], shown, row.dropped_turns, row.shortened))
    return fitted


def distinct_prompts(tasks: Sequence[Task]) -> list[str | Conversation]:
    """Each prompt once; none of tasks whose environment makes the prompts."""
    prompts = (task.get("prompt") for task in tasks)
    return list(dict.fromkeys(prompt for prompt in prompts if isinstance(prompt, str | Conversation)))


def prompt_lengths(tokenizer, prompts: Sequence[str | Conversation]) -> list[int]:
    """Tokens of each prompt."""
    return [len(ids) for ids in tokenize_texts(tokenizer, _rendered(tokenizer, prompts))]


def longest_prompt(tokenizer, tasks: Sequence[Task]) -> int:
    """Tokens of the longest prompt, among the MEASURED with most characters; 0 if environments make the prompts."""

    def characters(prompt: str | Conversation) -> int:
        return (
            len(prompt) if isinstance(prompt, str) else sum(map(len, (prompt.persona, *(t.text for t in prompt.turns))))
        )

    prompts = sorted(distinct_prompts(tasks), key=characters)[-MEASURED:]
    return max(prompt_lengths(tokenizer, prompts), default=0)


def _rendered(tokenizer, prompts: Sequence[str | Conversation]) -> list[str]:
    """The text of each prompt, conversations rendered by the chat template."""
    rendered = iter(render_all(tokenizer, [prompt for prompt in prompts if not isinstance(prompt, str)]))
    return [prompt if isinstance(prompt, str) else next(rendered) for prompt in prompts]


def _append(tokenizer, texts: Sequence[str], before: Sequence[Said | None], room: int) -> list[list[int] | None]:
    """The ids of each text that continues what was said before, at most `room`; None of the others."""
    special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    marks = tuple(special.union(tokenizer.all_special_tokens))
    parts = {
        i: part
        for i, (text, said) in enumerate(zip(texts, before, strict=True))
        if said is not None and (part := _continuation(tokenizer, text, said, marks))
    }
    rests = zip(parts.items(), _tokenize_rests(tokenizer, list(parts.values())), strict=True)
    appended = {i: [*part.ids, *rest] for (i, part), rest in rests if rest is not None}
    return [appended[i] if i in appended and len(appended[i]) <= room else None for i in range(len(texts))]


def _continuation(tokenizer, text: str, said: Said, marks: tuple[str, ...]) -> _Continuation | None:
    """The text as what was said and the rest; None if it does not continue it, or ends the reply by another mark."""
    sampled, reply = said.completion.ids, said.completion.text.strip()
    rest = text.removeprefix(said.text)
    lead = rest[: len(rest) - len(rest.lstrip())] if reply else ""
    if not (text.startswith(said.text) and rest.startswith(lead + reply)):
        return None
    has_eos = said.completion.finish_reason == "eos" and bool(sampled)
    whole = _sampled_text(tokenizer, sampled[: len(sampled) - has_eos], reply)
    if whole is None:
        return None
    rest, behind = rest[len(lead + reply) :], whole.lstrip()[len(reply) :] if reply else whole
    if rest.startswith(behind):
        rest = rest[len(behind) :]
    elif behind.strip() or not (reply or rest.lstrip().startswith(marks)):  # a stop string, or what nobody repeats
        return None
    if has_eos:
        end, written = _decode(tokenizer, sampled[-1:]), rest.lstrip()
        if end and written.startswith(end):  # once
            rest, whole = written[len(end) :], whole + end
        elif written.startswith(marks):
            return None
        else:  # the template ends this turn without a mark
            sampled = sampled[:-1]
    return _Continuation([*said.prompt, *sampled], (said.text + whole)[-CONTEXT:], rest)


def _sampled_text(tokenizer, ids: Sequence[int], reply: str) -> str | None:
    """The text of sampled ids, which begins with the reply after white space; None if they are not of this reply."""
    texts = (_decode(tokenizer, ids, skip_special_tokens=skip) for skip in (False, True))
    return next((text for text in texts if (text.lstrip().startswith(reply) if reply else not text.strip())), None)


def _tokenize_rests(tokenizer, parts: Sequence[_Continuation]) -> list[list[int] | None]:
    """Ids of the rest of each as behind its context, or where a token would span both, behind another text.

    None if they would decode to another text, as with the space that some tokenizers begin every text with.
    """
    contexts, wholes = [part.context for part in parts], [part.context + part.rest for part in parts]
    ids = tokenize_texts(tokenizer, [*contexts, *wholes])
    pairs = zip(parts, ids[: len(parts)], ids[len(parts) :], strict=True)
    return [
        whole[len(alone) :]
        if whole[: len(alone)] == alone
        else tokenize_behind(tokenizer, part.ids[-CHECKED:], part.rest)
        for part, alone, whole in pairs
    ]


def _decode(tokenizer, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)


def _end_of_text(tokenizer, ids: list[int], room: int) -> FittedPrompt:
    """The last tokens of a plain text, with its BOS if it has one."""
    bos = ids[:1] if ids[0] == tokenizer.bos_token_id and room > 1 else []
    kept = bos + ids[len(bos) + len(ids) - room :]
    return FittedPrompt(kept, tokenizer.decode(kept), shortened=len(ids) - len(kept))
