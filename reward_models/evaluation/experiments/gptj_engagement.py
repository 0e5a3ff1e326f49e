"""GPT-J, sampled as chat models for engagement were in 2023, with scorers trained on user behaviour.

python3 -m IPython -i -- eval_rewards_api.py talk_to_models --experiment_name gptj_engagement --select_model retry \
    --scorers retry=outputs/retry_accept/model,joint=outputs/convo_joint/model
"""

from dataclasses import dataclass

from lmgym.generation.protocol import Generator, Sampling
from lmgym.scoring.protocol import Scorer

SAMPLING = Sampling(temperature=0.72, repetition_penalty=1.13125, max_new_tokens=64, top_p=0.725, stop=("\n",))
PERSONA_FORM = "{persona}\n<START>"


@dataclass(frozen=True)
class EngagementConfig:
    """The policy and the scorers."""

    model: str = "EleutherAI/gpt-j-6b"
    """a causal model without a chat template of its own: it sees "User: ...", "Bot: ..." """
    scorers: str = "retry_accept=outputs/retry_accept/model"
    """[name=]PATH of each scorer, separated by commas"""


CONFIG = EngagementConfig()


def get_base_model(config: EngagementConfig = CONFIG) -> Generator:
    """The model, with a separator between persona and chat."""
    from lmgym.generation.context_fitting import PersonaGenerator
    from lmgym.generation.local_generation import load_causal

    return PersonaGenerator(load_causal(config.model), PERSONA_FORM)


def get_reward_models(config: EngagementConfig = CONFIG) -> dict[str, Scorer]:
    """The scorers, which see the persona without the separator."""
    from lmgym.scoring.named_scorers import load_scorers

    return load_scorers(config.scorers)
