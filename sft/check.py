"""Settings that an SFT run cannot have: refused before anything is loaded."""

from lmgym.config import check_eval_size, check_shared_settings
from sft.config import SftConfig


def check_settings(config: SftConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_shared_settings(config, config.policy)
    check_eval_size(config.data.eval_size, "rows")
