"""Tokenised pairs and thumbs. Those whose replies do not fit are recorded, never dropped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from lmgym.data.example_rows import ExampleRows
from lmgym.data.pairs import COLUMNS, Pair
from lmgym.data.rejections import IDENTICAL, Rejection
from lmgym.data.truncation import SAME_IDS, rejection_of, tokenize_apart
from lmgym.text import Conversation, Replies, words_of
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


E = TypeVar("E", PairExample, ThumbExample)


class RepliesOf(Sequence[Replies]):
    """All replies of examples that the reference scores, example after example, made when they are asked for."""

    def __init__(self, *parts: Sequence[PairExample] | Sequence[ThumbExample]) -> None:
        self.parts = [part for part in parts if len(part)]
        self.each = len(self.parts[0][0].rows) if self.parts else 1
        self.ends = np.cumsum([len(part) for part in self.parts])

    def __len__(self) -> int:
        return self.each * int(self.ends[-1]) if len(self.ends) else 0

    def __getitem__(self, place):
        example, which = divmod(place, self.each)
        part = int(np.searchsorted(self.ends, example, side="right"))
        first = int(self.ends[part - 1]) if part else 0
        return self.parts[part][example - first].rows[which]

    def __iter__(self) -> Iterator[Replies]:
        return (row for part in self.parts for example in part for row in example.rows)


class WithReference(Sequence[E]):
    """Examples with the reference's log-probabilities [examples, 2]."""

    def __init__(self, examples: Sequence[E], values: np.ndarray) -> None:
        self.examples: Sequence[E] = examples
        self.values = values

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        return replace(self.examples[place], reference=tuple(self.values[place].tolist()))

    def __iter__(self) -> Iterator[E]:
        for example, values in zip(self.examples, self.values.tolist(), strict=True):
            yield replace(example, reference=tuple(values))


def reply_lengths(examples: Sequence[PairExample]) -> np.ndarray:
    """[pairs, 2]: tokens to predict of both replies, the end of each included."""
    rows = examples.examples if isinstance(examples, WithReference) else examples
    if isinstance(rows, ExampleRows):
        return rows.reply_lengths.reshape(-1, 2)
    return np.array([[len(suffix) for suffix in example.replies.suffixes] for example in rows])


def tokenize_pairs(
    pairs: Sequence[Pair], tokenizer, max_length: int, numbers: dict[int, int] | None = None
) -> tuple[list[PairExample], list[Rejection]]:
    """Token ids of every pair whose replies fit whole; the others as rejections. `numbers` of prompts are added to."""
    numbers = {} if numbers is None else numbers
    rows = tokenize_apart(
        tokenizer, [p.conversation for p in pairs], [(p.chosen, p.rejected) for p in pairs], max_length
    )
    examples, rejections = [], []
    for pair, replies in zip(pairs, rows, strict=True):
        if isinstance(replies, str):
            longer = COLUMNS[len(words_of(pair.rejected)) > len(words_of(pair.chosen))]
            rejections.append(rejection_of(pair.file, pair.line, longer, replies))
        elif replies.suffixes[0] == replies.suffixes[1]:
            rejections.append(Rejection(pair.file, pair.line, "rejected", SAME_IDS, IDENTICAL))
        else:
            number = numbers.setdefault(hash(pair.prompt_key), len(numbers))
            examples.append(PairExample(replies, number, pair.conversation, pair.file, pair.line, pair.preference))
    return examples, rejections


def tokenize_thumbs(
    thumbs: Sequence[Thumb], tokenizer, max_length: int, numbers: dict[int, int] | None = None
) -> tuple[list[ThumbExample], list[Rejection]]:
    """Token ids of every reply that fits whole, the others as rejections. `numbers` of prompts are added to.

    The mismatched reply is the row's own until `with_mismatched` finds another.
    """
    numbers = {} if numbers is None else numbers
    rows = tokenize_apart(tokenizer, [t.conversation for t in thumbs], [(t.reply,) for t in thumbs], max_length)
    examples, rejections = [], []
    for thumb, row in zip(thumbs, rows, strict=True):
        if isinstance(row, str):
            rejections.append(rejection_of(thumb.file, thumb.line, thumb.field, row))
            continue
        number = numbers.setdefault(hash(thumb.prompt_key), len(numbers))
        examples.append(
            ThumbExample(row, number, thumb.conversation, thumb.file, thumb.line, thumb.liked, mismatched=row)
        )
    return examples, rejections


def with_mismatched(examples: Sequence[ThumbExample], seed: int, max_length: int) -> Iterator[ThumbExample]:
    """Each example with a reply to another prompt.

    Which reply stands behind which other prompt is drawn once, by the seed: so the reference scores it once, and the
    baseline does not depend on how updates are cut into micro-batches.
    """
    prompts = [example.prompt for example in examples]
    for example, other in zip(examples, others(prompts, seed), strict=True):
        yield replace(example, mismatched=_mismatched(example.replies, examples[other].replies, max_length))


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
