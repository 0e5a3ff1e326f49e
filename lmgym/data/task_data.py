"""Training and evaluation examples of a task, with every row of the dataset accounted for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.config import RowSettings
from lmgym.data.mixing import Part, drawn_by_set, mix, read_sets, read_weights, set_names, sets_of_rows
from lmgym.data.rejections import Rejection, Tally, tally
from lmgym.data.rows import P, fingerprint, split_by_prompt, without_prompts
from lmgym.data.sampling import ordered_sample
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError


@dataclass(frozen=True)
class TaskData:
    """Examples made from a dataset."""

    noun: str
    """the examples in words: pairs, rows, groups"""
    train: Sequence[Any]
    evaluation: Sequence[Any]
    lengths: np.ndarray
    """tokens of each training example"""
    replies: int
    """most replies in an example"""
    truncated: int
    """examples without their oldest turns, or shortened"""
    shortened: int
    """examples whose last turn before the reply was cut: see lmgym/data/truncation.py"""
    rejections: Sequence[Rejection]
    fingerprint: str
    left_out: dict[str, int] = field(default_factory=dict)
    """usable rows beyond a limit"""
    rows: int = 0
    """read for training and evaluation"""
    parts: Sequence[Part] = ()
    """of several data sets, what is drawn of each"""

    @property
    def tally(self) -> Tally:
        """The rejections by reason."""
        return tally(self.rejections, self.rows)

    @property
    def counts(self) -> dict[str, Any]:
        """Counts that are printed and recorded, so that no row disappears silently."""
        return {
            f"train_{self.noun}": len(self.train),
            f"eval_{self.noun}": len(self.evaluation),
            f"truncated_{self.noun}": self.truncated,
            f"shortened_{self.noun}": self.shortened,
            **self.tally.counts,
            **self.left_out,
            **drawn_by_set(self.parts),
        }


def check_sides(data: TaskData, rows: int, ranks: int) -> TaskData:
    """The data unchanged. Raises InputError if a side is empty, or there are fewer training examples than ranks."""
    noun = data.noun.removesuffix("s")
    first = f"; the first: {data.tally.first}" if data.tally.first else ""
    for name, side in (("training", data.train), ("evaluation", data.evaluation)):
        if not len(side):
            raise InputError(
                f"no {noun} is left for {name} of {rows} rows: {data.tally.line}{first}; check "
                "those rows, --max_length and --eval_size"
            )
    if len(data.train) < ranks:
        raise InputError(
            f"{len(data.train)} training {noun}(s) for {ranks} ranks leaves ranks without data; use fewer ranks"
        )
    return data


def prepare_prompted(
    settings: RowSettings,
    seed: int,
    tokenizer,
    noun: str,
    usable: str,
    validate: Callable[..., tuple[list[P], list[Rejection]]],
    tokenize: Callable[[Sequence[P], Any, int], tuple[list[Any], list[Rejection]]],
) -> TaskData:
    """Rows read, validated, split by prompt and tokenised; `usable` describes a valid row in an error message.

    `validate` takes the rows of each data set.
    """
    weights = read_weights(settings.dataset_weights, set_names(settings.dataset), "dataset_weights")
    sets = read_sets(settings.dataset, settings.dataset_split, settings.max_rows)
    found, rejections = validate(*sets.values())
    kept, parts = mix(sets_of_rows(found, rejections, sets, usable), [*sets], weights, seed)
    rows = [found[i] for i in kept]
    unmixed, read = len(found) - len(rows), sum(map(len, sets.values()))
    if settings.eval_dataset:
        others = read_sets(settings.eval_dataset, "test")
        held_out, faults = validate(*others.values())
        read += sum(map(len, others.values()))
        rows, leaks = without_prompts(rows, held_out)
        rejections = [*rejections, *faults, *leaks]
    else:
        rows, held_out = split_by_prompt(rows, settings.eval_size, seed, noun)
    chosen = [rows[i] for i in sample_rows(len(rows), settings.train_size, seed)]
    (train, long), (evaluation, also_long) = (tokenize(s, tokenizer, settings.max_length) for s in (chosen, held_out))
    unused = len(rows) - len(chosen) + unmixed
    data = TaskData(
        noun=noun,
        train=train,
        evaluation=evaluation,
        lengths=np.array([example.replies.tokens for example in train]),
        replies=max((len(example.replies.suffixes) for example in train), default=0),
        truncated=sum(e.replies.truncated for e in (*train, *evaluation)),
        shortened=sum(e.replies.shortened > 0 for e in (*train, *evaluation)),
        rejections=[*rejections, *long, *also_long],
        fingerprint=fingerprint(chosen, held_out),
        left_out={"unused_rows": unused} if unused else {},
        rows=read,
        parts=parts,
    )
    return check_sides(data, sum(map(len, sets.values())), world_size())


def sample_rows(rows: int, size: int | None, seed: int) -> np.ndarray:
    """Indices of all rows, or an increasing random sample of `size`. Raises InputError for a size below 1."""
    if size is not None and size < 1:
        raise InputError(f"--train_size {size} leaves nothing to train on; needed: 1 or more, or None for all")
    return np.arange(rows) if size is None or rows <= size else ordered_sample(rows, size, seed)
