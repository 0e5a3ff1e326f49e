"""What is known of a model that was chosen because its evaluation was the best of several.

The highest of noisy means flatters the model that has it. Where there are prompts enough, every other one chooses, in
the order of their names, and the rest measure what was chosen: their mean is not flattered. Where there are fewer, all
choose, and nothing else measures the model. Either way `optimism` says by how much the mean of those that choose is too
high.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np

from lmgym.scoring.alarm import Reading
from lmgym.statistics import FEW, Estimate, mean, optimism


@final
@dataclass
class Choice:
    """The evaluations of a run by a score that is higher for a better model, by prompt."""

    looks: dict[int, Reading] = field(default_factory=dict)
    """by number of updates, without the one before step 1"""
    held_out: list[str] = field(default_factory=list)
    """names of the prompts that do not choose; empty if all do"""

    def add(self, update: int, reading: Reading) -> float | None:
        """The mean over the prompts that choose; None without any of them, and before step 1.

        The first evaluation, or the first that has scores, picks them.
        """
        if not self.held_out and not self.looks and reading.units >= 2 * FEW:
            self.held_out = [*reading.names[1::2]]
        if update == 0:
            return None
        self.looks[update] = reading
        found = self._values(update, held_out=False)
        return float(np.mean([*found.values()])) if found else None

    @property
    def flattery(self) -> float | None:
        """By how much the best mean is too high, over the prompts that every look has; None if these cannot say."""
        known = [values for update in self.looks if (values := self._values(update, held_out=False))]
        names = sorted(set.intersection(*map(set, known))) if known else []
        found = optimism(np.array([[values[name] for name in names] for values in known])) if names else None
        return None if found is None else max(0.0, found)

    def measured(self, update: int) -> Estimate:
        """The mean over the prompts that did not choose, after so many updates."""
        return mean([*self._values(update, held_out=True).values()])

    def words(self, update: int) -> str:
        """What stands behind the score of the best evaluation: how much of it is the choice, and what others say."""
        if update not in self.looks:
            return ""
        too_high, others, number = self.flattery, self.measured(update), len(self.looks)
        choosing = len(self._values(update, held_out=False))
        flattered = ""
        if too_high is not None:
            flattered = f", of which about {too_high:.2g} is the choice among {number} evaluations"
        if self.held_out:
            return f"{flattered}; on the {others.units} prompts that did not choose it: {others:.4g}"
        return f"{flattered}; all {choosing} prompts chose, with {2 * FEW} or more half would measure what they choose"

    def record(self, update: int) -> dict[str, Any]:
        """The same for the files of a run."""
        others = self.measured(update) if self.held_out else None
        return {
            "evaluations": len(self.looks),
            "prompts_that_choose": len(self._values(update, held_out=False)),
            "flattery": self.flattery,
            "on_other_prompts": None if others is None else asdict(others),
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        looks = [{"update": update, "reading": asdict(reading)} for update, reading in self.looks.items()]
        return {"looks": looks, "held_out": self.held_out}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state; that of a checkpoint from before there was one is empty."""
        self.held_out = [*state.get("held_out", ())]
        self.looks = {look["update"]: Reading(**look["reading"]) for look in state.get("looks", ())}

    def _values(self, update: int, held_out: bool) -> dict[str, float]:
        """By prompt, of those that choose or of the others."""
        look, others = self.looks.get(update), set(self.held_out)
        found = zip(look.names, look.values, strict=True) if look else ()
        return {name: value for name, value in found if (name in others) == held_out}
