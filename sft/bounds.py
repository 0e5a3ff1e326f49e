"""Numbers that an SFT run cannot have: refused before anything is loaded."""

from lmgym.config import bounds_of_rows, bounds_of_stages
from lmgym.errors import MOST_TEMPERATURE, MOST_TOGETHER, Bound, count_bound, refuse_out_of_bounds
from sft.config import SamplesConfig, SftConfig


def refuse_impossible(config: SftConfig) -> None:
    """Raises InputError for a number that does not fit, and for a name that is no folder's."""
    refuse_out_of_bounds(bounds_of_stages(config, config.policy))
    refuse_out_of_bounds([*bounds_of_rows(config.data), *_of_samples(config.samples)])


def _of_samples(s: SamplesConfig) -> list[Bound]:
    return [
        Bound("sample_prompts", s.sample_prompts, 0 <= s.sample_prompts <= 10_000, "0 (none) or more; at most 10,000"),
        count_bound("sample_tokens", s.sample_tokens, MOST_TOGETHER),
        Bound(
            "temperature",
            s.temperature,
            s.temperature is None or 0 <= s.temperature <= MOST_TEMPERATURE,
            f"0 (greedy) or more; at most {MOST_TEMPERATURE}",
        ),
        Bound("top_p", s.top_p, s.top_p is None or 0 < s.top_p <= 1, "above 0; at most 1 (all)"),
    ]
