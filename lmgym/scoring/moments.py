"""Means and standard deviations from sums that ranks can add up."""

import math
from collections.abc import Mapping

import torch

Moments = tuple[float, float]
"""mean and variance (of the population: divided by the count)"""


def sums_of(values: torch.Tensor) -> torch.Tensor:
    """float64 [3]: sum, sum of squares and count of values of any shape."""
    values = values.double()
    return torch.stack([values.sum(), (values**2).sum(), torch.tensor(values.numel()).to(values)])


def moments_of(sums: torch.Tensor) -> Moments:
    """Mean and variance from sums, sums of squares and count. Raises ValueError where nothing was counted."""
    total, squares, count = sums.tolist()
    if not count:
        raise ValueError("no values, so there are no moments; needed: a mask with at least one token")
    mean = total / count
    return mean, max(squares / count - mean * mean, 0.0)


class RunningMoments:
    """Mean, std and count of all values that were ever seen, however they were batched (Chan et al. 1979, eq. 2.1).

    The std is the population's, 0 until two values differ.
    """

    def __init__(self) -> None:
        self.mean, self.count, self._squares = 0.0, 0, 0.0

    @property
    def std(self) -> float:
        """Standard deviation, divided by the count."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def update(self, values: torch.Tensor) -> None:
        """Takes in values of any shape. Raises ValueError for one that is not finite, and takes in none then."""
        self.merge(sums_of(values))

    def merge(self, sums: torch.Tensor) -> None:
        """`update` with `sums_of` the values, which may have been added up over ranks."""
        total, squares, count = sums.tolist()
        if not (math.isfinite(total) and math.isfinite(squares)):
            raise ValueError(f"values with sum {total} and sum of squares {squares}; needed: finite ones only")
        if not count:
            return
        both = self.count + int(count)
        gap = total / count - self.mean
        self._squares += max(squares - total * total / count, 0.0) + gap * gap * self.count * count / both
        self.mean += gap * count / both
        self.count = both

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, for a checkpoint."""
        return {"mean": self.mean, "count": self.count, "squares": self._squares}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Goes on from there."""
        self.mean, self.count, self._squares = float(state["mean"]), int(state["count"]), float(state["squares"])
