"""Prompts as token ids, truncated to the room that the context leaves beside a reply."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.data.prompts import Task
from lmgym.data.truncation import truncate
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, render_all, tokenize_texts

MEASURED = 256  # prompts that are tokenised to find the longest


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

    @property
    def truncated(self) -> bool:
        """True if anything was left out."""
        return bool(self.dropped_turns or self.shortened)


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


def fit_prompts(tokenizer, prompts: Sequence[Conversation | str], room: int) -> list[FittedPrompt]:
    """Prompts of at most `room` tokens each: conversations rendered by the chat template, texts as they are.

    A conversation that is too long loses its oldest turns (data/truncation.py), a text its beginning after a BOS.
    Raises InputError if nothing of a prompt fits.
    """
    texts, tokenized = _tokenized(tokenizer, prompts)
    long = [
        prompt
        for prompt, ids in zip(prompts, tokenized, strict=True)
        if len(ids) > room and not isinstance(prompt, str)
    ]
    truncated = iter(truncate(tokenizer, long, None, room))
    fitted = []
    for prompt, text, ids in zip(prompts, texts, tokenized, strict=True):
        if len(ids) <= room:
            fitted.append(FittedPrompt(ids, text))
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
    return [len(ids) for ids in _tokenized(tokenizer, prompts)[1]]


def longest_prompt(tokenizer, tasks: Sequence[Task]) -> int:
    """Tokens of the longest prompt, among the MEASURED with most characters; 0 if environments make the prompts."""

    def characters(prompt: str | Conversation) -> int:
        return (
            len(prompt) if isinstance(prompt, str) else sum(map(len, (prompt.persona, *(t.text for t in prompt.turns))))
        )

    prompts = sorted(distinct_prompts(tasks), key=characters)[-MEASURED:]
    return max(prompt_lengths(tokenizer, prompts), default=0)


def _tokenized(tokenizer, prompts: Sequence[str | Conversation]) -> tuple[list[str], list[list[int]]]:
    """The text of each prompt, conversations rendered by the chat template, and its ids."""
    rendered = iter(render_all(tokenizer, [prompt for prompt in prompts if not isinstance(prompt, str)]))
    texts = [prompt if isinstance(prompt, str) else next(rendered) for prompt in prompts]
    return texts, tokenize_texts(tokenizer, texts)


def _end_of_text(tokenizer, ids: list[int], room: int) -> FittedPrompt:
    """The last tokens of a plain text, with its BOS if it has one."""
    bos = ids[:1] if ids[0] == tokenizer.bos_token_id and room > 1 else []
    kept = bos + ids[len(bos) + len(ids) - room :]
    return FittedPrompt(kept, tokenizer.decode(kept), shortened=len(ids) - len(kept))
