"""Means and standard deviations, from sums that can be added over ranks."""

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
    """Mean and variance from `sums_of`. Raises ValueError for a count of 0."""
    total, squares, count = sums.tolist()
    if not count:
        raise ValueError("no values, so there are no moments; needed: a mask with at least one token")
    mean = total / count
    return mean, max(squares / count - mean * mean, 0.0)


def group_moments(values: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Count, mean and standard deviation of each value's group, [n] each, of the values that are not NaN.

    The standard deviation has one degree of freedom less. Raises ValueError for shapes that differ or are not [n].
    """
    if values.dim() != 1 or values.shape != groups.shape:
        raise ValueError(f"values {list(values.shape)}, groups {list(groups.shape)}; needed: [n] both")
    _, member = groups.unique(return_inverse=True)
    known = ~values.isnan()

    def total(numbers: torch.Tensor) -> torch.Tensor:
        sums = numbers.new_zeros(int(member.max()) + 1 if len(member) else 0)
        return sums.index_add_(0, member, torch.where(known, numbers, 0.0))[member]

    count = total(torch.ones_like(values))
    mean = total(values) / count.clamp(min=1)
    variance = total((values - mean) ** 2) / (count - 1).clamp(min=1)
    return count, mean, variance.sqrt()


class RunningMoments:
    """Mean, std and count of all values so far, in any batches (Chan et al. 1979, eq. 2.1).

    The std is the population's, 0 until two values differ.
    """

    def __init__(self) -> None:
        self.mean, self.count, self._squares = 0.0, 0, 0.0

    @property
    def std(self) -> float:
        """Standard deviation, divided by the count."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def update(self, values: torch.Tensor) -> None:
        """Add values of any shape. Raises ValueError, and adds none, if one is not finite."""
        self.merge(sums_of(values))

    def merge(self, sums: torch.Tensor) -> None:
        """Add values by their `sums_of`, which may be added over ranks first."""
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
        """Restore from `state_dict`."""
        self.mean, self.count, self._squares = float(state["mean"]), int(state["count"]), float(state["squares"])
