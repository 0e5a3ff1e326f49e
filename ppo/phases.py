"""Where the time of an iteration goes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from lmgym.environments.protocol import Sample, SampleReward
from lmgym.runs.supervisor import Supervisor


@final
class Clock:
    """Seconds of each phase, on this rank; each is a sign of life."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor, self.now = supervisor, ""
        self.found: dict[str, float] = {}
        self.since = time.perf_counter()

    def phase(self, name: str) -> str:
        """Begins a phase; the one before."""
        before, now = self.now, time.perf_counter()
        if before:
            self.found[before] = self.found.get(before, 0.0) + now - self.since
        self.now, self.since = name, now
        self.supervisor.heartbeat(name)
        return before

    def seconds(self, tokens: float) -> dict[str, float]:
        """time/ of each phase, and the tokens that were trained a second."""
        self.phase("")
        total = sum(self.found.values()) - self.found.get("evaluate", 0.0)
        found = {f"time/{name}": value for name, value in self.found.items()}
        generated = self.found.get("rollout_generate", 0.0)
        found["time/rollout_time"] = generated + self.found.get("rollout_score", 0.0)
        return found | {"time/iteration": total, "rollout/tokens_per_second": tokens / max(total, 1e-9)}


@dataclass(frozen=True)
class TimedReward:
    """A judge whose time is not that of the sampling."""

    inner: Any
    clock: Clock

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """The inner one's."""
        before = self.clock.phase("rollout_score")
        try:
            return self.inner.rewards(samples)
        finally:
            self.clock.phase(before)
