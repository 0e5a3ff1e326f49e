"""Tokenised pairs and thumbs. Those whose replies do not fit are recorded, never dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lmgym.data.pairs import COLUMNS, Pair
from lmgym.data.rejections import UNFIT, Rejection
from lmgym.data.truncation import tokenize_apart
from lmgym.text import Conversation, Replies
from preferences.thumbs import Thumb

MOST_TRIES = 100  # to find a reply to another prompt


@dataclass(frozen=True)
class PairExample:
    """A pair, chosen first, tokenised as `tokenize_apart` does. `prompt` numbers the distinct prompts."""

    replies: Replies
    prompt: int
    conversation: Conversation
    file: str
    line: int
    preference: float = 1.0
    """the probability that the chosen reply is the better one"""
    reference: tuple[float, ...] = ()
    """the reference's log-probabilities of both replies, summed over tokens"""

    @property
    def origin(self) -> str:
        """file:line of its row."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def rows(self) -> tuple[Replies, ...]:
        """All replies that the reference scores."""
        return (self.replies,)


@dataclass(frozen=True)
class ThumbExample:
    """A reply that was liked or disliked, and a reply to another prompt behind this one, for KTO's baseline."""

    replies: Replies
    prompt: int
    conversation: Conversation
    file: str
    line: int
    liked: bool
    mismatched: Replies
    reference: tuple[float, ...] = ()
    """the reference's log-probabilities of both replies, summed over tokens"""

    @property
    def origin(self) -> str:
        """file:line of its row."""
        return f"{Path(self.file).name}:{self.line}"

    @property
    def rows(self) -> tuple[Replies, ...]:
        """All replies that the reference scores."""
        return self.replies, self.mismatched


def tokenize_pairs(pairs: Sequence[Pair], tokenizer, max_length: int) -> tuple[list[PairExample], list[Rejection]]:
    """Token ids of every pair whose replies fit whole; the others as rejections."""
    numbers: dict[str, int] = {}
    rows = tokenize_apart(
        tokenizer, [p.conversation for p in pairs], [(p.chosen, p.rejected) for p in pairs], max_length
    )
    examples, rejections = [], []
    for pair, replies in zip(pairs, rows, strict=True):
        if isinstance(replies, str):
            longer = COLUMNS[len(pair.rejected) > len(pair.chosen)]
            rejections.append(Rejection(pair.file, pair.line, longer, replies, UNFIT))
            continue
        number = numbers.setdefault(pair.prompt_key, len(numbers))
        examples.append(PairExample(replies, number, pair.conversation, pair.file, pair.line, pair.preference))
    return examples, rejections


def tokenize_thumbs(
    thumbs: Sequence[Thumb], tokenizer, max_length: int, seed: int = 0
) -> tuple[list[ThumbExample], list[Rejection]]:
    """Token ids of every reply that fits whole, the others as rejections.

    Which reply stands behind which other prompt is drawn once, by the seed: so the reference scores it once, and the
    baseline does not depend on how updates are cut into micro-batches.
    """
    numbers: dict[str, int] = {}
    rows = tokenize_apart(tokenizer, [t.conversation for t in thumbs], [(t.reply,) for t in thumbs], max_length)
    fitting = [(thumb, row) for thumb, row in zip(thumbs, rows, strict=True) if isinstance(row, Replies)]
    rejections = [
        Rejection(thumb.file, thumb.line, thumb.field, row, UNFIT)
        for thumb, row in zip(thumbs, rows, strict=True)
        if isinstance(row, str)
    ]
    prompts = [numbers.setdefault(thumb.prompt_key, len(numbers)) for thumb, _ in fitting]
    examples = [
        ThumbExample(
            row, prompt, thumb.conversation, thumb.file, thumb.line, thumb.liked,
            mismatched=_mismatched(row, fitting[other][1], max_length),
        )
        for (thumb, row), prompt, other in zip(fitting, prompts, others(prompts, seed), strict=True)
    ]  # fmt: skip
    return examples, rejections


def others(prompts: Sequence[int], seed: int) -> list[int]:
    """For each row the next one, in a random order, that answers another prompt; if there is none nearby, the next."""
    order = np.random.default_rng(seed).permutation(len(prompts)).tolist()
    found = [0] * len(prompts)
    for place, row in enumerate(order):
        near = [order[(place + step) % len(order)] for step in range(1, min(MOST_TRIES, len(order)) + 1)]
        found[row] = next((other for other in near if prompts[other] != prompts[row]), near[0])
    return found


def _mismatched(row: Replies, other: Replies, max_length: int) -> Replies:
    """The prompt of a row with another's reply, which loses the tokens at its end that do not fit."""
    [own], [foreign] = row.suffixes, other.suffixes
    return Replies(row.prefix, [[own[0], *foreign[1 : max_length - len(row.prefix)]]])
