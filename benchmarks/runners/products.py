"""Operations of matrix products, counted as they run: two a multiplication. Attention's fused kernels do not count."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# the factor whose rows and inner width count, by the name of the operation; the result's last axis is the third number
FACTOR = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "linear": 0, "_linear_pointwise": 0}


class CountProducts(TorchDispatchMode):
    """Adds up between `__enter__` and `__exit__`, whoever calls."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], arguments: tuple = (), named: dict | None = None
    ) -> torch.Tensor:
        """Runs the operation."""
        found = operation(*arguments, **(named or {}))
        place = FACTOR.get(operation._overloadpacket.__name__)
        if place is not None:
            self.operations += 2 * math.prod(arguments[place].shape) * found.shape[-1]
        return found
