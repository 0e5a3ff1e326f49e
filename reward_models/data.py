"""Preference pairs, tokenised. Those whose replies do not fit are recorded, never dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmgym.data.example_rows import ExampleRows
from lmgym.data.pairs import COLUMNS, Pair
from lmgym.data.rejections import IDENTICAL, Rejection
from lmgym.data.truncation import SAME_IDS, Truncated, rejection_of, reply_ids, scored_ids, truncate
from lmgym.text import Replies, words_of


@dataclass(frozen=True)
class PairExample:
    """A tokenised pair, chosen first. `prompt` numbers the distinct prompts; lengths are of the replies."""

    replies: Replies
    margin: float
    prompt: int
    lengths: tuple[int, int]
    origin: str = ""
    """file:line of its row"""
    preference: float = 1.0
    """the probability that the chosen reply is the better one; .5 is a tie"""


def pair_lengths(examples: Sequence[PairExample]) -> np.ndarray:
    """[pairs, 2]: tokens of both replies."""
    if isinstance(examples, ExampleRows):
        return pc.list_flatten(examples.table["lengths"]).to_numpy().reshape(-1, 2)
    return np.array([example.lengths for example in examples])


def decided(examples: Sequence[PairExample]) -> Sequence[PairExample]:
    """Those whose chosen reply is the better one by their preference: a tie has nothing to be right about."""
    if isinstance(examples, ExampleRows):
        better = examples.numbers("preference") > 0.5
        return examples if better.all() else ExampleRows(examples.table.filter(pa.array(better)), PairExample)
    return [example for example in examples if example.preference > 0.5]


def tokenize_pairs(
    pairs: Sequence[Pair], tokenizer, max_length: int, numbers: dict[int, int] | None = None
) -> tuple[list[PairExample], list[Rejection]]:
    """Token ids of every pair whose replies fit whole; the others as rejections.

    Reply lengths are in tokens. `numbers` of distinct prompts are added to.
    """
    numbers = {} if numbers is None else numbers
    rows = truncate(tokenizer, [p.conversation for p in pairs], [(p.chosen, p.rejected) for p in pairs], max_length)
    examples, rejections = [], []
    for pair, row in zip(pairs, rows, strict=True):
        if isinstance(row, str):
            longer = COLUMNS[len(words_of(pair.rejected)) > len(words_of(pair.chosen))]
            rejections.append(rejection_of(pair.file, pair.line, longer, row))
            continue
        chosen, rejected = row.ids
        if chosen == rejected:
            rejections.append(Rejection(pair.file, pair.line, "rejected", SAME_IDS, IDENTICAL))
            continue
        replies = scored_ids(tokenizer, row)
        number = numbers.setdefault(hash(pair.prompt_key), len(numbers))
        lengths = _lengths(tokenizer, row)
        origin = f"{Path(pair.file).name}:{pair.line}"
        examples.append(PairExample(replies, pair.margin, number, lengths, origin, pair.preference))
    return examples, rejections


def _lengths(tokenizer, row: Truncated) -> tuple[int, int]:
    """Tokens of both replies, without the ends of their turns."""
    bodies = reply_ids(tokenizer, row) if row.chat.has_prompt else row.chat.rests
    chosen, rejected = row.chat.rests if isinstance(bodies, str) else bodies
    return len(chosen), len(rejected)
