"""The watch over a server that samples: each iteration's replies are compared with the trainer's log-probabilities.

Design decisions:
- Replies that were sampled with probabilities q, which the trainer gives p, have a mean p / q of 1, whatever p and q
  are: a server whose log-probabilities are not those it sampled with breaks that, however little they are off.
- How far p and q are apart depends on the policy, the precision and the staleness: it is judged by what the run itself
  has shown, as soon as that is FEWEST iterations, and by fixed limits until then.
- A breach proves nothing by itself. The weights are synced and proved again (sync_proof.py): a failed proof ends the
  run; after a good one it goes on, with a warning and with weights of at most the cap.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, final

FEWEST, WINDOW = 8, 32
"""iterations that make a baseline, and the most that are remembered"""
DEVIATIONS, FACTOR = 6.0, 2.0
"""above the median that are a breach: standard deviations, by the median absolute one, and at least this factor"""
LIMITS = {"gap": 0.25, "far": 0.05}
"""until there is a baseline: nats a token, and the share of tokens"""
TRIFLE = {"gap": 1e-3, "far": 0.01}
"""never a breach: what changes no update"""
ERRORS, RATIO_TRIFLE = 6.0, 0.005
"""standard errors, and the distance of the mean p / q from 1 beyond both of which it is a breach"""
NORMAL = 1.4826
"""a normal distribution's standard deviation over its median absolute deviation"""


@final
@dataclass
class SamplerWatch:
    """The figures of the last iterations, by name: `gap`, |log p - log q| in nats a token, and `far`, the share of
    tokens whose p and q differ by a factor of 2 or more.
    """

    past: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LIMITS})

    def breaches(self, gap: float, far: float, ratio: float, ratio_error: float) -> list[str]:
        """What is wrong with an iteration's replies, in words; the figures are remembered.

        `ratio` is the mean p / q, with its standard error.
        """
        wrong = []
        if not abs(ratio - 1) <= max(RATIO_TRIFLE, ERRORS * ratio_error):
            wrong.append(
                f"the mean of p / q, which is 1 for replies that were sampled with q, is {ratio:.3g} "
                f"(standard error {ratio_error:.2g})"
            )
        texts = {
            "gap": "p and q differ by {:.3g} nats a token, at most {:.2g} expected",
            "far": "{:.1%} of the tokens differ by a factor of 2, at most {:.1%} expected",
        }
        for name, value in {"gap": gap, "far": far}.items():
            if not value <= (most := self.most(name)):
                wrong.append(texts[name].format(value, most))
            if math.isfinite(value):
                self.past[name] = [*self.past[name], value][-WINDOW:]
        return wrong

    def most(self, name: str) -> float:
        """The largest value of a figure that is no breach."""
        past = self.past[name]
        if len(past) < FEWEST:
            return LIMITS[name]
        middle = median(past)
        deviation = NORMAL * median(abs(value - middle) for value in past)
        return max(TRIFLE[name], FACTOR * middle, middle + DEVIATIONS * deviation)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for a checkpoint."""
        return {"past": self.past}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state; of a checkpoint from before there was a watch, none."""
        self.past = {name: list(state.get("past", {}).get(name, ())) for name in LIMITS}
