"""What a PPO run is made of: one frozen config in groups, every field a flag. trlx's names where they exist."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig

if TYPE_CHECKING:
    from lmgym.generation.protocol import Sampling  # torch comes with it, and --help needs none


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
    """leave the oldest turns of longer prompts out, counted, or refuse them"""
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
    scorer_precision: Literal["auto", "bf16", "fp32"] = "auto"
    """of scorers' weights, but for their heads in fp32; auto: bf16 on a GPU, fp32 on a CPU"""
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
    reward_timeout: float = 360.0
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

    @property
    def sampling(self) -> "Sampling":
        """How replies are drawn. Raises InputError for settings out of bounds."""
        from lmgym.generation.protocol import Sampling

        r = self.rollout
        return Sampling(
            r.max_new_tokens, r.temperature, r.top_k, r.top_p, r.repetition_penalty, seed=self.optimizer.seed
        )

    def accumulation_steps(self, ranks: int) -> int:
        """Micro-batches of each rank that an optimizer update has, where its replies are as many as its share.

        Unlike `lmgym.data.batching.accumulation_steps` it refuses no remainder: micro-batches are cut to what is there.
        """
        return max(1, self.optimizer.global_batch // ranks // self.optimizer.micro_batch)
