"""Prompts as token ids, in the room that the context leaves beside a reply; longer ones are truncated."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmgym.data.truncation import truncate
from lmgym.errors import InputError
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, render_all, tokenize_texts


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt as the policy sees it."""

    ids: list[int]
    text: str
    """the same in words"""
    dropped_turns: int = 0
    """oldest turns that were left out"""
    shortened: int = 0
    """tokens that the last turn, or a prompt that is plain text, lost at its beginning"""

    @property
    def truncated(self) -> bool:
        """Whether anything was left out."""
        return bool(self.dropped_turns or self.shortened)


def room_for_prompts(context: int, sampling: Sampling, max_prompt: int | None = None) -> int:
    """Most tokens of a prompt: what the context leaves beside a reply, or `max_prompt`. Raises InputError for none."""
    left = context - sampling.max_new_tokens
    if left < 1:
        raise InputError(
            f"max_new_tokens={sampling.max_new_tokens} leaves no room for a prompt in a context of "
            f"{context}; needed: fewer new tokens, or a model that reads more"
        )
    if max_prompt is not None and not 1 <= max_prompt <= left:
        raise InputError(
            f"max_prompt={max_prompt}; needed: 1 to {left}, the context of {context} less "
            f"max_new_tokens={sampling.max_new_tokens}"
        )
    return left if max_prompt is None else max_prompt


def fit_prompts(tokenizer, prompts: Sequence[Conversation | str], room: int) -> list[FittedPrompt]:
    """Prompts in at most `room` tokens each: conversations as the chat template renders them, texts as they are.

    A conversation that is too long loses its oldest turns (data/truncation.py), a text its beginning behind a BOS.
    Raises InputError where nothing of a prompt fits.
    """
    rendered = iter(render_all(tokenizer, [prompt for prompt in prompts if not isinstance(prompt, str)]))
    texts = [prompt if isinstance(prompt, str) else next(rendered) for prompt in prompts]
    tokenized = tokenize_texts(tokenizer, texts)
    long = {
        i: prompt
        for i, (prompt, ids) in enumerate(zip(prompts, tokenized, strict=True))
        if len(ids) > room and not isinstance(prompt, str)
    }
    fitted = dict(zip(long, truncate(tokenizer, list(long.values()), None, room), strict=True))
    found = []
    for i, (text, ids) in enumerate(zip(texts, tokenized, strict=True)):
        kept = fitted.get(i)
        if isinstance(kept, str):
            raise InputError(f"a prompt does not fit into {room} tokens: {kept}; shorten it, or leave more room")
        if kept is not None:
            [own] = kept.ids
            [shown] = render_all(tokenizer, [kept.conversation])
            found.append(FittedPrompt(own, shown, kept.dropped_turns, kept.shortened))
        elif len(ids) > room:
            found.append(_end_of_text(tokenizer, ids, room))
        else:
            found.append(FittedPrompt(ids, text))
    return found


def _end_of_text(tokenizer, ids: list[int], room: int) -> FittedPrompt:
    """The last tokens of a plain text; a BOS at its front stays."""
    first = ids[:1] if ids[0] == tokenizer.bos_token_id and room > 1 else []
    kept = first + ids[len(first) + len(ids) - room :]
    return FittedPrompt(kept, tokenizer.decode(kept), shortened=len(ids) - len(kept))
