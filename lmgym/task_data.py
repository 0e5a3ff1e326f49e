"""What a stage's task makes of a dataset, in one object, with every row accounted for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lmgym.errors import InputError
from lmgym.rows import Rejection


@dataclass(frozen=True)
class TaskData:
    """Everything that a dataset became. `noun` is what one counts: pairs, rows, groups."""

    noun: str
    train: Sequence[Any]
    evaluation: Sequence[Any]
    lengths: np.ndarray
    """tokens of each training example"""
    replies: int
    """most replies of an example"""
    truncated: int
    rejections: Sequence[Rejection]
    fingerprint: str
    left_out: dict[str, int] = field(default_factory=dict)
    """usable rows that a limit left out"""

    @property
    def counts(self) -> dict[str, int]:
        """What is printed and recorded: nothing goes missing silently."""
        return {
            f"train_{self.noun}": len(self.train),
            f"eval_{self.noun}": len(self.evaluation),
            f"truncated_{self.noun}": self.truncated,
            "rejected_rows": len(self.rejections),
            **self.left_out,
        }


def check_sides(data: TaskData, rows: int, ranks: int) -> TaskData:
    """The data, where both sides have examples and every rank has some. Raises InputError otherwise."""
    for name, side in (("training", data.train), ("evaluation", data.evaluation)):
        if not len(side):
            raise InputError(
                f"no {data.noun.removesuffix('s')} is left for {name}: {rows} rows, {len(data.rejections)} unusable; "
                "check rejected rows, --max_length and --eval_size"
            )
    if len(data.train) < ranks:
        noun = data.noun.removesuffix("s")
        raise InputError(
            f"{len(data.train)} training {noun}(s) for {ranks} ranks leaves ranks without data; use fewer ranks"
        )
    return data
