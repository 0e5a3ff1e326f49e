"""How long a prompt may be, and what a longer one loses: its left, behind the BOS."""

from dataclasses import dataclass

from lmgym.errors import InputError
from lmgym.generation import Sampling
from lmgym.text import truncate_left


@dataclass(frozen=True)
class Prompt:
    """What a policy sees."""

    ids: list[int]
    text: str
    """the same in words"""
    cut: int = 0
    """tokens that it lost on its left"""


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


def fit_prompt(tokenizer, ids: list[int], text: str, room: int) -> Prompt:
    """The last `room` tokens of a prompt; a BOS at its front stays."""
    bos = tokenizer.bos_token_id
    window = truncate_left([ids], len(ids), room, frozenset() if bos is None else frozenset([bos]))
    assert window is not None  # no final turn was asked to stay whole
    [kept], cut = window
    return Prompt(kept, tokenizer.decode(kept) if cut else text, cut)
