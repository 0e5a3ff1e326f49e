"""The entry of a metric: its stages, unit, title, meaning and better direction, and what its interval rests on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

S, R, P, RL = (frozenset({stage}) for stage in ("sft", "reward_models", "preferences", "ppo"))
"""the stages, as run.json has them"""
TRAINER = S | R | P
"""those that Hugging Face's Trainer runs"""
ALL = TRAINER | RL
AUC = "Probability that a random positive scores above a random negative (area under the ROC curve); 0.5 is chance."
SPEARMAN = "Spearman's rank correlation, -1 to 1; 0: no agreement."
Better = Literal["higher", "lower"] | None


@dataclass(frozen=True)
class Metric:
    """A metric as tables, cards and charts show it."""

    title: str
    """as a card or a table names it"""
    about: str
    stages: frozenset[str]
    unit: str = ""
    better: Better = None
    """the direction of a better model; None if neither is"""
    over: str = ""
    """what its 95% interval takes as independent, such as prompts; empty if it has no interval"""
    short: str = ""
    """its name in a line of figures; empty: the title"""
    main: bool = False
    """True if runs are listed by it, where they have it"""
    of_data: bool = False
    """True if it does not depend on the model"""
    before_updates: bool = False
    """True if a line has that of the policy before the updates of the iteration that ends there"""


Table = list[tuple[str, Metric]]
"""metrics by a pattern of their whole name; titles and meanings may refer to its groups"""
Texts = str | tuple[str, str] | tuple[str, str, str]
"""a meaning; or a title and a meaning; or these and a short name"""


def group(
    stages: frozenset[str], unit: str, texts: Mapping[str, Texts], better: Better = None, over: str = ""
) -> Table:
    """Metrics that share all but their texts."""
    found = []
    for pattern, given in texts.items():
        title, about, short = ("", given, "") if isinstance(given, str) else (*given, "")[:3]
        found.append((pattern, Metric(title, about, stages, unit, better, over, short)))
    return found


def one(pattern: str, metric: Metric) -> Table:
    """A single metric."""
    return [(pattern, metric)]
