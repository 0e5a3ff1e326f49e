"""Numbers that a reward-model run cannot have: refused before anything is loaded."""

from lmgym.config import bounds_of_rows, bounds_of_stages
from lmgym.errors import MOST_STEPS, Bound, count_bound, refuse_out_of_bounds
from reward_models.config import RewardConfig


def refuse_impossible(config: RewardConfig) -> None:
    """Raises InputError for a number that does not fit, and for a name that is no folder's."""
    data = config.data
    refuse_out_of_bounds(bounds_of_stages(config, config.scorer))
    refuse_out_of_bounds((
        *bounds_of_rows(data),
        count_bound("rows_per_user", data.rows_per_user, MOST_STEPS, "1 or more, or none for all"),
        count_bound("probe_rows", data.probe_rows, MOST_STEPS),
        Bound("centering", config.centering, 0 <= config.centering <= 1000, "0 (none) or more; at most 1,000"),
    ))  # fmt: skip
