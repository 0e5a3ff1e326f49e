"""Any causal model and any scorers, by folder or hub id.

python3 -m IPython -i -- eval_rewards_api.py talk_to_models --experiment_name hh --select_model helpful \
    --model Qwen/Qwen3-0.6B --scorers helpful=outputs/hh_pairwise/model,other=owner/name
"""

from dataclasses import dataclass

from lmgym.generation.protocol import Generator, Sampling
from lmgym.scoring.protocol import Scorer

DEFAULT_SAMPLING = Sampling(max_new_tokens=128, temperature=0.9, top_p=0.95)


@dataclass(frozen=True)
class HHConfig:
    """The policy and the scorers."""

    model: str = "Qwen/Qwen3-0.6B"
    """a causal model: folder or hub id"""
    scorers: str = "hh_pairwise=outputs/hh_pairwise/model"
    """[name=]PATH of each scorer, separated by commas; empty: none"""


CONFIG = HHConfig()


def get_base_model(config: HHConfig = CONFIG) -> Generator:
    """The model; a persona becomes its chat template's system message."""
    from lmgym.generation.local_generation import load_causal

    return load_causal(config.model)


def get_reward_models(config: HHConfig = CONFIG) -> dict[str, Scorer]:
    """The scorers, each with the template of its own folder."""
    from lmgym.scoring.named_scorers import load_scorers

    return load_scorers(config.scorers) if config.scorers else {}
