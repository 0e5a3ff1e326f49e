"""Any model, in this process or served, and any scorers, by folder or hub id.

python3 -m IPython -i -- eval_rewards_api.py talk_to_models --experiment_name hh --select_model helpful \
    --model Qwen/Qwen3-0.6B --scorers helpful=outputs/hh_pairwise/model,other=owner/name
"""

from dataclasses import dataclass
from typing import Annotated

from lmgym.config import Range
from lmgym.errors import MOST_TOGETHER
from lmgym.generation.protocol import Generator, Sampling
from lmgym.scoring.protocol import Scorer

DEFAULT_SAMPLING = Sampling(max_new_tokens=128, temperature=0.9, top_p=0.95)


@dataclass(frozen=True)
class HHConfig:
    """The policy and the scorers."""

    model: str = "Qwen/Qwen3-0.6B"
    """folder, hub id, vllm:URL, vllm:FOLDER, openai:URL#MODEL or anthropic:MODEL"""
    scorers: str = "hh_pairwise=outputs/hh_pairwise/model"
    """[name=]PATH of each scorer, separated by commas; empty: none"""
    concurrency: Annotated[int, Range(1, MOST_TOGETHER)] = 8
    """most requests to a served model at a time"""


CONFIG = HHConfig()


def get_base_model(config: HHConfig = CONFIG) -> Generator:
    """The model; a persona becomes its chat template's system message."""
    from lmgym.generation.model_specs import load_generator

    return load_generator(config.model, config.concurrency)


def get_reward_models(config: HHConfig = CONFIG) -> dict[str, Scorer]:
    """The scorers, each with the template of its own folder."""
    from lmgym.scoring.named_scorers import load_scorers

    return load_scorers(config.scorers) if config.scorers else {}
