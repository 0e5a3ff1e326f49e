"""Rewards: their sources and processing, and limits beyond which a run has collapsed."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lmgym.config import First, Range
from lmgym.errors import MOST_SCORE, MOST_SECONDS
from lmgym.scoring.named_scorers import compares, read_names


@dataclass(frozen=True)
class RewardConfig:
    """Sources and processing of rewards."""

    reward: Annotated[str | None, First()] = None
    """[name=]FILE.py:FUNCTION, comma-separated: functions in Python, as of TRL, verl, OpenRLHF or trlx, beside scorers,
    if any; FILE.py with one function needs no name of it"""
    scorers: Annotated[str | None, First()] = None
    """[name=]PATH, comma-separated; a path without a name is named after its folder"""
    weights: str | None = None
    """name=NUMBER, comma-separated, of reward and scorers, or name=FIRST:LAST, evenly over the run; None: 1 each"""
    eval_scorer: str | None = None
    """a scorer that is never optimised: folder, hub id, or world:SEED, that world's hidden utility; an alarm is raised
    if its score falls while the reward rises"""
    monitor_scorers: str | None = None
    """more scorers that are never optimised: [name=]PATH, comma-separated"""
    best_metric: str | None = None
    """model/ is the policy of the best evaluation by this monitor, eval_scorer or a name of monitor_scorers, and the
    last is in last/; None: model/ is the last"""
    normalize: Literal["run", "group", "none"] | None = None
    """each reward before the sum. run: shifted and scaled by its moments on replies of the policy before step 1; group:
    by those of each group, and the sum by those of the batch, for methods that compare replies; none: as it is; None:
    run of scorers, none of functions"""
    cliprange_reward: Annotated[
        float | None,
        Range(0, MOST_SCORE, above=True, infinite=True, also=(None,), hint="5 to 10 is usual, inf clips nothing"),
    ] = None
    """rewards are clipped to +- this; None: those that are normalised by run to +- 10, others not at all"""
    scale: Annotated[float, Range(0, MOST_SCORE, above=True)] = 1.0
    """factor of the rewards: a value head starts at 0 and learns returns of about 1 fastest"""
    missing_eos_penalty: Annotated[float, Range(0, MOST_SCORE, hint="it is subtracted from the score")] = 0.0
    """subtracted from the score of a reply that reached max_new_tokens; `reward/*` and samples are before it"""
    mask_truncated: bool = False
    """replies that reached max_new_tokens have no loss"""
    overlong_penalty: Annotated[float | None, Range(0, MOST_SCORE, also=(None,))] = None
    """largest penalty of long replies: it grows from 0 over the last overlong_buffer of max_new_tokens"""
    overlong_buffer: Annotated[float, Range(0, 1, above=True, hint="a share of max_new_tokens")] = 0.2
    """share of max_new_tokens over which overlong_penalty grows"""
    max_failed_rewards: Annotated[float, Range(0, 1)] = 0.1
    """share of an iteration's episodes whose reward may fail; above it the run stops"""
    reward_timeout: Annotated[float, Range(0, MOST_SECONDS, above=True, hint="seconds")] = 360.0
    """seconds for a rank's batch after which a reward function or a scorer counts as stalled"""

    @property
    def has_comparing_judge(self) -> bool:
        """True if a judge that compares replies is among the scorers that are optimised."""
        return any(map(compares, read_names(self.scorers).values())) if self.scorers else False


@dataclass(frozen=True)
class LimitConfig:
    """Limits beyond which a run ends as collapsed."""

    max_kl: Annotated[float, Range(0, MOST_SCORE, hint="0 never stops")] = 100.0
    """nats per reply from the reference above which the run stops as collapsed; without a KL penalty they are measured
    in the first iteration and before evaluations only; 0: never"""
    min_length: Annotated[float, Range(0, 1, below=True, hint="a share of the first length, 0 never stops")] = 0.1
    """mean reply length, as a share of the first iteration's, below which the run stops as collapsed; 0: never"""
