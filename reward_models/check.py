"""Settings that a reward-model run cannot have: refused before anything is loaded."""

from lmgym.config import check_eval_size, check_shared_settings
from reward_models.config import RewardConfig


def check_settings(config: RewardConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_shared_settings(config, config.scorer)
    check_eval_size(config.data.eval_size, "rows")
