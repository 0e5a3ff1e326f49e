"""The alarm of over-optimisation: a score that is not optimised falls while the reward that is optimised rises."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass
class Alarm:
    """Raised once when the evaluation scorer's score falls while the reward rises, both since its best score."""

    best_score: float = -math.inf
    reward_at_best: float = -math.inf
    raised_at: int = -1

    def update(self, update: int, reward: float, score: float, standard_error: float) -> bool:
        """True if the score is two standard errors below its best, at a higher reward."""
        if score > self.best_score:
            self.best_score, self.reward_at_best = score, reward
        on = score < self.best_score - 2 * standard_error and reward > self.reward_at_best
        if on and self.raised_at < 0:
            self.raised_at = update
        return on

    @property
    def label(self) -> str:
        """The alarm in the status line; empty if it was not raised."""
        return f"ALARM at update {self.raised_at}: eval scorer falls" if self.raised_at >= 0 else ""

    def message(
        self,
        update: int,
        reward: float,
        score: float,
        when: str = "update",
        scorer: str = "the evaluation scorer",
        coefficient: str = "init_kl_coef",
    ) -> str:
        """The line that users see."""
        return (
            f"ALARM at {when} {update:,}: {scorer}'s score fell to {score:.3f} (best {self.best_score:.3f}) "
            f"while the reward rose from {self.reward_at_best:.3f} to {reward:.3f}: the policy exploits its reward; "
            f"look at samples, stop at an earlier checkpoint, or raise {coefficient}"
        )

    def state_dict(self) -> dict[str, float]:
        """Plain numbers, for a checkpoint."""
        return {"best_score": self.best_score, "reward_at_best": self.reward_at_best, "raised_at": self.raised_at}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restores the state."""
        self.best_score, self.reward_at_best = state["best_score"], state["reward_at_best"]
        self.raised_at = int(state["raised_at"])
