"""What a PPO run is made of: one frozen config in groups, every field a flag. trlx's names where they exist."""

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.errors import InputError


@dataclass(frozen=True)
class RolloutConfig:
    """What the policy is asked, and how it answers."""

    prompts: str = "outputs/world/sft.parquet"
    """file (.jsonl, .jsonl.gz, .parquet, .csv), folder or hub id: `prompt`, or a chat whose last reply is left out"""
    eval_prompts: str | None = None
    """prompts to evaluate on; None: a part of the prompts"""
    eval_size: float = 64
    """without eval_prompts: a share below 1, or a number of prompts"""
    num_rollouts: int = 128
    """episodes an iteration, over all ranks"""
    max_new_tokens: int = 48
    """most tokens of a reply"""
    temperature: float = 1.0
    """of the sampling; log-probabilities are taken at it everywhere"""
    top_k: int = 0
    """only the k likeliest tokens, 0: all; biases the ratio, as top_p and repetition_penalty do"""
    top_p: float = 1.0
    """only the fewest likeliest tokens whose probabilities sum to p"""
    repetition_penalty: float = 1.0
    """logits of tokens that the text holds are weakened by it"""
    max_prompt: int = 0
    """most tokens of a prompt; 0: what the context leaves beside the reply"""
    long_prompts: Literal["cut", "refuse"] = "cut"
    """cut longer prompts on the left, counted, or refuse them"""
    batch_rows: int = 256
    """replies that are sampled together"""
    cache_gb: float = 2.0
    """of the frozen layers' states that are kept for an iteration (num_layers_unfrozen), GiB a rank"""


@dataclass(frozen=True)
class RewardConfig:
    """Where rewards come from and what becomes of them."""

    scorers: str | None = None
    """name=PATH, more of them behind commas"""
    weights: str | None = None
    """name=NUMBER, more of them behind commas; None: 1 each"""
    gold: str | None = None
    """a scorer that is only watched: folder, hub id, or world:SEED, that world's hidden utility; an alarm tells when it
    falls while the reward rises"""
    watched: str | None = None
    """more scorers that are only watched: name=PATH, more of them behind commas"""
    normalize: bool = True
    """shift and scale each scorer by its moments on replies of the policy before step 1"""
    cliprange_reward: float = 10.0
    """rewards beyond +- this are cut"""
    scale: float = 1.0
    """rewards are multiplied by it: a value head starts at 0, and learns returns of about 1 soonest"""
    missing_eos_penalty: float = 0.0
    """taken off the score of a reply that did not end by itself; `reward/*` and samples are before it"""
    max_failed_rewards: float = 0.1
    """share of an iteration's episodes whose reward may fail; above it the run stops"""
    reward_retries: int = 2
    """how often a reward that fails is asked again"""
    reward_timeout: float = 120.0
    """seconds for a rank's batch after which a reward function or a scorer counts as stalled"""


@dataclass(frozen=True)
class MethodConfig:
    """The algorithm."""

    ppo_epochs: int = 4
    """passes over an iteration's rollouts"""
    init_kl_coef: float = 0.05
    """weight of the KL to the reference in the reward, at first"""
    target: float | None = None
    """KL a reply, in nats, that the weight is adapted to; None: it stays"""
    horizon: float = 10000.0
    """replies over which the weight adapts"""
    gamma: float = 1.0
    """discount a token: below 1 a reply earns more by being short"""
    lam: float = 0.95
    """of GAE"""
    cliprange: float = 0.2
    """of the policy's ratio"""
    cliprange_value: float = 0.2
    """of the change of a value"""
    vf_coef: float = 1.0
    """weight of the value loss"""
    whiten: bool = True
    """advantages to mean 0 and variance 1 over all ranks"""
    stop_kl: float = 0.0
    """end an iteration's epochs once the policy is so many nats a token from the one that sampled; 0: never"""
    critic: str = "head"
    """head: a new value head on the policy's trunk; else the folder of a reward model that the critic starts from, or
    `critic/` of a former run"""
    critic_learning_rate: float = 0.0
    """peak learning rate of a value head, or of a critic of its own; 0: learning_rate, as for all else"""
    critic_warmup: int = 0
    """first iterations in which only the critic learns"""
    num_layers_unfrozen: int = -1
    """train only the top layers: what is below is frozen, and run once an iteration for all that needs it; -1: all"""
    max_kl: float = 100.0
    """nats a reply from the reference above which the run stops as collapsed; 0: never"""
    min_reward: float | None = None
    """mean reward below which the run stops as collapsed; None: never"""
    min_length: float = 0.1
    """mean reply length, as a share of the first iteration's, below which the run stops as collapsed; 0: never"""


@dataclass(frozen=True)
class PPOConfig:
    """A PPO experiment."""

    name: str
    """of the experiment: names the output folder"""
    policy: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.output or f"outputs/{self.name}"

    @property
    def updates_an_iteration(self) -> int:
        """Optimizer updates between two rollout phases."""
        return self.method.ppo_epochs * self.rollout.num_rollouts // self.optimizer.global_batch

    def accumulation_steps(self, ranks: int) -> int:
        """Micro-batches of each rank that an optimizer update has, where its replies are as many as its share.

        Unlike `lmgym.batching.accumulation_steps` it refuses no remainder: micro-batches are cut to what is there.
        """
        return max(1, self.optimizer.global_batch // ranks // self.optimizer.micro_batch)


def refuse_impossible(config: PPOConfig, ranks: int) -> None:
    """Raises InputError, before anything is loaded, for numbers that do not go together."""
    rollouts, batch, micro = config.rollout.num_rollouts, config.optimizer.global_batch, config.optimizer.micro_batch
    if batch < 1 or micro < 1 or rollouts < 1:
        raise InputError(f"num_rollouts={rollouts}, global_batch={batch}, micro_batch={micro}; needed: 1 or more each")
    if batch % ranks:
        raise InputError(f"global_batch={batch} cannot be shared by {ranks} ranks; use {_near(batch, ranks)}")
    if rollouts % batch:
        raise InputError(
            f"num_rollouts={rollouts} is not a multiple of global_batch={batch}; use {_near(rollouts, batch)}: every "
            "update of an iteration sees as many rollouts"
        )
    for name, value, fits, needed in _bounds(config):
        if not fits:
            raise InputError(f"{name}={value}; needed: {needed}")
    if config.method.num_layers_unfrozen > 0 and config.policy.lora_rank:
        raise InputError(
            f"num_layers_unfrozen={config.method.num_layers_unfrozen} and lora_rank={config.policy.lora_rank}: each is "
            "a way to train a part of the policy; choose one (--num_layers_unfrozen -1 or --lora_rank 0)"
        )
    if config.method.target is not None:
        _refuse_target(config)
    _refuse_precision(config)


def _bounds(config: PPOConfig) -> list[tuple[str, float | None, bool, str]]:
    """(name, value, whether it fits, what is needed) of each setting that is bounded by itself; NaN never fits."""
    r, w, m, o = config.rollout, config.reward, config.method, config.optimizer
    dropout, log, an_iteration = config.policy.lora_dropout, config.run.log_updates, config.updates_an_iteration
    usual, workers = RunConfig().log_updates, config.run.data_workers
    return [
        ("ppo_epochs", m.ppo_epochs, m.ppo_epochs >= 1, "1 or more"),
        ("temperature", r.temperature, r.temperature > 0, "above 0: a policy must explore"),
        ("scale", w.scale, 0 < w.scale < inf, "above 0"),
        (
            "cliprange_reward",
            w.cliprange_reward,
            w.cliprange_reward > 0,
            "above 0, or no reward is left; 5 to 10 is usual, inf cuts none",
        ),
        ("max_failed_rewards", w.max_failed_rewards, 0 <= w.max_failed_rewards <= 1, "0 to 1"),
        ("gamma", m.gamma, 0 <= m.gamma <= 1, "0 to 1"),
        ("lam", m.lam, 0 <= m.lam <= 1, "0 to 1"),
        ("cliprange", m.cliprange, m.cliprange > 0, "above 0; .2 is usual"),
        ("cliprange_value", m.cliprange_value, m.cliprange_value > 0, "above 0; .2 is usual, inf lets values go free"),
        ("vf_coef", m.vf_coef, 0 <= m.vf_coef < inf, "0 or more: below 0 the critic would learn to be wrong"),
        ("init_kl_coef", m.init_kl_coef, 0 <= m.init_kl_coef < inf, "0 or more"),
        ("target", m.target, m.target is None or 0 < m.target < inf, "above 0; leave it out for a fixed coefficient"),
        ("horizon", m.horizon, 0 < m.horizon < inf, "above 0; 10000 is usual"),
        (
            "num_layers_unfrozen",
            m.num_layers_unfrozen,
            m.num_layers_unfrozen == -1 or m.num_layers_unfrozen > 0,
            "1 or more, or -1 to train all",
        ),
        ("learning_rate", o.learning_rate, 0 < o.learning_rate < inf, "above 0"),
        ("critic_learning_rate", m.critic_learning_rate, 0 <= m.critic_learning_rate < inf, "0 or more"),
        (
            "lora_dropout",
            dropout,
            dropout == 0,
            "0: replies are learned by the log-probabilities that they were sampled with, so dropout is off in PPO",
        ),
        ("packed", config.policy.packed, config.policy.packed is None, "none; leave it out: PPO packs where it can"),
        ("data_workers", workers, workers == 0, "0: no batches are prepared where replies are sampled"),
        (
            "log_updates",
            log,
            log == usual,
            f"{usual}, which is to leave it out: PPO logs a line an iteration, which is {an_iteration} updates here",
        ),
    ]


def _refuse_target(config: PPOConfig) -> None:
    from ppo.advantages import MOST_CHANGE  # here: torch comes with it, and --help needs none

    method, rollouts = config.method, config.rollout.num_rollouts
    if method.init_kl_coef <= 0:
        raise InputError("target needs init_kl_coef above 0: an adaptive weight of 0 stays 0")
    if method.horizon <= MOST_CHANGE * rollouts:
        raise InputError(
            f"horizon={method.horizon:g} with num_rollouts={rollouts}; needed: a horizon above "
            f"{MOST_CHANGE * rollouts:g}, or one iteration can take all of the KL coefficient; 10000 is usual"
        )


def _refuse_precision(config: PPOConfig) -> None:
    from lmgym.training import refuse_fp16_without_gpu  # here: as above

    refuse_fp16_without_gpu(config.policy)
    if config.policy.precision == "fp16" and config.run.deepspeed is None:
        raise InputError(
            "--precision fp16 without --deepspeed; needed: DeepSpeed, which alone scales the loss of PPO so that small "
            "gradients are not lost: use bf16 or fp32, or add --deepspeed configs/zero2.json"
        )


def _near(number: int, factor: int) -> str:
    low, high = number // factor * factor, -(-number // factor) * factor
    return f"{low} or {high}" if low else str(high)
