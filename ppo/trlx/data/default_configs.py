"""trlx's default configs, and the names that its programs import from here."""

from typing import NoReturn

from lmgym.errors import InputError
from ppo.trlx.data.configs import ModelConfig as ModelConfig
from ppo.trlx.data.configs import OptimizerConfig as OptimizerConfig
from ppo.trlx.data.configs import SchedulerConfig as SchedulerConfig
from ppo.trlx.data.configs import TokenizerConfig as TokenizerConfig
from ppo.trlx.data.configs import TrainConfig as TrainConfig
from ppo.trlx.data.configs import TRLConfig as TRLConfig
from ppo.trlx.data.method_configs import NO_ILQL, NO_NEMO, MethodConfig
from ppo.trlx.data.method_configs import DPOConfig as DPOConfig
from ppo.trlx.data.method_configs import ILQLConfig as ILQLConfig
from ppo.trlx.data.method_configs import PPOConfig as PPOConfig
from ppo.trlx.data.method_configs import SFTConfig as SFTConfig

ENDLESS = 1e12  # T_max of a cosine that never falls


def default_ppo_config() -> TRLConfig:
    """PPO."""
    train = TrainConfig(10000, 1024, 100, 32, 10000, 100, "PromptPipeline", "AcceleratePPOTrainer")
    return _config(train, ModelConfig("lvwerra/gpt2-imdb", num_layers_unfrozen=2), 3e-5, PPOConfig())


def default_sft_config() -> TRLConfig:
    """SFT."""
    train = TrainConfig(1000, 1024, 100, 8, 10000, 100, "PromptPipeline", "AccelerateSFTTrainer")
    return _config(train, ModelConfig("gpt2"), 1e-4, SFTConfig())


def default_ilql_config() -> NoReturn:
    """Raises InputError: ILQL is refused."""
    raise InputError(NO_ILQL)


def default_nemo_1_3b_config() -> NoReturn:
    """Raises InputError: NeMo is refused."""
    raise InputError(NO_NEMO)


default_nemo_2b_config = default_nemo_20b_config = default_nemo_1_3b_config


def _config(train: TrainConfig, model: ModelConfig, learning_rate: float, method: MethodConfig) -> TRLConfig:
    """A constant learning rate, and 40 new tokens by plain sampling."""
    method.gen_kwargs = {"max_new_tokens": 40, "top_k": 0, "top_p": 1.0, "do_sample": True}
    settings = {"lr": learning_rate, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 1e-6}
    schedule = SchedulerConfig("cosine_annealing", {"T_max": ENDLESS, "eta_min": learning_rate})
    return TRLConfig(method, model, OptimizerConfig("adamw", settings), schedule, TokenizerConfig("gpt2"), train)
