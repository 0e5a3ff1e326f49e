"""The `method` section of a trlx config: PPO, SFT or RFT. ILQL and DPO are refused."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lmgym.errors import InputError, shown

NO_ILQL = (
    "ILQL, offline training on rewards, is not here; needed: PPO on a reward_fn (default_ppo_config), lmgym train "
    "preference on pairs of a better and a worse reply, or SFT on the best samples (samples= without rewards=)"
)
NO_DPO = (
    "DPO is not run by trlx.train here; needed: lmgym train preference dpo --dataset FILE, with rows of prompt, chosen "
    "and rejected"
)
NO_NEMO = (
    "NeMo's trainers and models are not here; needed: default_ppo_config or default_sft_config with the folder or hub "
    "id of a Hugging Face model, and torchrun or accelerate launch for several GPUs"
)


@dataclass(slots=True)
class MethodConfig:
    """The fields of all methods."""

    name: str
    gen_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PPOConfig(MethodConfig):
    """PPO with a value head. `num_rollouts` and `chunk_size` count replies of one rank."""

    name: str = "PPOConfig"
    ppo_epochs: int = 4
    num_rollouts: int = 128
    chunk_size: int = 128
    init_kl_coef: float = 0.001
    target: float | None = None
    horizon: float = 10000
    gamma: float = 1.0
    lam: float = 0.95
    cliprange: float = 0.2
    cliprange_value: float = 0.2
    vf_coef: float = 1.0
    scale_reward: str | bool | None = "ignored"
    ref_mean: float | None = None
    ref_std: float | None = None
    cliprange_reward: float | None = 10
    gen_experience_kwargs: dict[str, Any] | None = None
    num_value_layers_unfrozen: int = 0


@dataclass(slots=True)
class SFTConfig(MethodConfig):
    """Supervised fine-tuning on samples."""

    name: str = "SFTConfig"


@dataclass(slots=True)
class RFTConfig(MethodConfig):
    """Rejection-sampling fine-tuning: SFT on the best of the policy's own replies to each prompt."""

    name: str = "RFTConfig"
    start_percentile: float = 0.7
    end_percentile: float = 0.95
    n_improve_steps: int = 4
    n_generations_per_prompt: int = 32


@dataclass(slots=True)
class ILQLConfig(MethodConfig):
    """Refused: raises InputError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise InputError(NO_ILQL)


@dataclass(slots=True)
class DPOConfig(MethodConfig):
    """Refused: raises InputError."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise InputError(NO_DPO)


METHODS: dict[str, type[MethodConfig]] = {
    "ppoconfig": PPOConfig,
    "sftconfig": SFTConfig,
    "rftconfig": RFTConfig,
    "ilqlconfig": ILQLConfig,
    "dpoconfig": DPOConfig,
}
REFUSED: dict[type[MethodConfig], str] = {ILQLConfig: NO_ILQL, DPOConfig: NO_DPO}


def find_method(section: Any) -> type[MethodConfig]:
    """The class that a method section names, in upper or lower case. Raises InputError for others, ILQL and DPO."""
    name = section.get("name") if isinstance(section, Mapping) else None
    found = METHODS.get(str(name).lower())
    if found is None:
        raise InputError(f"method.name is {shown(name)}; needed: PPOConfig, RFTConfig or SFTConfig")
    if found in REFUSED:
        raise InputError(REFUSED[found])
    return found
