"""Learning-rate schedules, the same in every stage."""

import math
from collections.abc import Callable


def learning_rate(peak: float, schedule: str, warmup: float, updates: int) -> Callable[[int], float]:
    """The rate of each update, counted from 0: a linear warm-up, then linear or cosine decay to 0, or constant.

    `warmup` is a share of `updates` below 1, rounded up, or a number of them. The k-th of W such updates, counted from
    1, has the rate peak * k / W: an update at rate 0 would cost as much as any, and change nothing.
    """
    first = math.ceil(warmup * updates) if warmup < 1 else int(warmup)

    def rate(update: int) -> float:
        if update < first:
            return peak * (update + 1) / first
        done = (update - first) / max(1, updates - first)
        if schedule == "linear":
            return peak * max(0.0, 1 - done)
        if schedule == "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return peak

    return rate
