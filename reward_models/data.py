"""Preference pairs, tokenised. Those whose replies do not fit are recorded, never dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lmgym.data.pairs import COLUMNS, Pair
from lmgym.data.rejections import UNFIT, Rejection
from lmgym.data.truncation import tokenize_replies
from lmgym.text import Replies


@dataclass(frozen=True)
class PairExample:
    """A tokenised pair, chosen first. `prompt` numbers the distinct prompts; lengths are of the replies."""

    replies: Replies
    margin: float
    prompt: int
    lengths: tuple[int, int]
    origin: str = ""
    """file:line of its row"""


def tokenize_pairs(pairs: Sequence[Pair], tokenizer, max_length: int) -> tuple[list[PairExample], list[Rejection]]:
    """Token ids of every pair whose replies fit whole; the others as rejections. Reply lengths are in tokens."""
    numbers: dict[str, int] = {}
    rows = tokenize_replies(
        tokenizer, [p.conversation for p in pairs], [(p.chosen, p.rejected) for p in pairs], max_length
    )
    words = (
        tokenizer([r for p in pairs for r in (p.chosen, p.rejected)], add_special_tokens=False).input_ids
        if pairs
        else []
    )
    examples, rejections = [], []
    for index, (pair, replies) in enumerate(zip(pairs, rows, strict=True)):
        lengths = (len(words[2 * index]), len(words[2 * index + 1]))
        if isinstance(replies, str):
            rejections.append(Rejection(pair.file, pair.line, COLUMNS[lengths[1] > lengths[0]], replies, UNFIT))
            continue
        number = numbers.setdefault(pair.prompt_key, len(numbers))
        origin = f"{Path(pair.file).name}:{pair.line}"
        examples.append(PairExample(replies, pair.margin, number, lengths, origin))
    return examples, rejections
