"""Training metrics: sums over the micro-batches since the last line of metrics, on all ranks."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lmgym.distributed.ranks import sum_over_ranks


class TrainingMetrics:
    """Sums since the last line of metrics, and the loss since step 1. Resumed from a checkpoint with the trainer."""

    def __init__(self) -> None:
        self._tallies: dict[str, torch.Tensor] = {}
        self._total_loss, self._logged_at = 0.0, 0  # of the updates up to the last line
        self._since = time.perf_counter()

    def add(self, sums: Mapping[str, torch.Tensor], items: int, tokens: int) -> None:
        """Adds a micro-batch: sums of its loss and tallies, on the device without waiting for it."""
        device = sums["loss"].device
        values: dict[str, torch.Tensor | int] = {**sums, "items": items, "tokens": tokens}
        for name, value in values.items():
            before = self._tallies.get(name, torch.zeros((), dtype=torch.float64))
            self._tallies[name] = before.to(device, non_blocking=True) + value

    def line(self, step: int) -> dict[str, float]:
        """Means and rates since the last line, summed over ranks. Collective."""
        names = sorted(self._tallies)
        totals = sum_over_ranks(torch.stack([self._tallies[name].double() for name in names])).tolist()
        sums = dict(zip(names, totals, strict=True))
        self._tallies.clear()
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        items, tokens, loss = sums.pop("items"), sums.pop("tokens"), sums.pop("loss")
        updates, self._logged_at = step - self._logged_at, step
        self._total_loss += loss
        return {
            **{f"train/{name}": value / max(items, 1) for name, value in sums.items()},
            "train/loss": loss / updates,
            "train/items_per_second": items / seconds,
            "train/tokens_per_second": tokens / seconds,
            "time/train": seconds,
        }

    def mean_loss(self) -> dict[str, float]:
        """The mean loss of all updates of the run, as a metric; nothing before the first line."""
        return {"run/loss": self._total_loss / self._logged_at} if self._logged_at else {}

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time within is no training time."""
        began = time.perf_counter()
        yield
        self._since += time.perf_counter() - began

    def state(self) -> dict[str, Any]:
        """Content of a checkpoint."""
        tallies = {name: value.cpu() for name, value in self._tallies.items()}
        return {"tallies": tallies, "total_loss": self._total_loss, "logged_at": self._logged_at}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continues from a checkpoint."""
        self._tallies.update(state["tallies"])
        self._total_loss, self._logged_at = state["total_loss"], state["logged_at"]
