"""Settings of a PPO run: one frozen config in groups, every field a flag. Names follow trlx where it has them."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from lmgym.config import ModelConfig, OptimizerConfig, Range, RunConfig
from lmgym.errors import MOST_GB, MOST_SCORE, MOST_SECONDS, MOST_STEPS, MOST_TEMPERATURE, MOST_TOGETHER, MOST_TOKENS

if TYPE_CHECKING:
    from lmgym.generation.protocol import Sampling  # imports torch, which --help does not need


@dataclass(frozen=True)
class RolloutConfig:
    """Prompts and sampling."""

    prompts: str = "outputs/world/sft.parquet"
    """file (.jsonl, .jsonl.gz, .parquet, .csv), folder or hub id: `prompt`, or a chat whose last reply is left out;
    several are separated by commas"""
    prompt_weights: str | None = None
    """of several data sets: numbers separated by commas, in whose proportion prompts are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all prompts"""
    eval_prompts: str | None = None
    """prompts to evaluate on; None: a part of the prompts"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the prompts")] = 64
    """without eval_prompts: a share below 1, or a number of prompts"""
    num_rollouts: Annotated[int, Range(1, MOST_TOGETHER)] = 128
    """episodes per iteration, over all ranks"""
    max_new_tokens: int = 48
    """maximum tokens of a reply"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, above=True, hint="a policy must explore")] = 1.0
    """sampling temperature; log-probabilities are computed at it everywhere"""
    top_k: int = 0
    """sample from the k most likely tokens only, 0: all; biases the ratio, as top_p and repetition_penalty do"""
    top_p: float = 1.0
    """sample from the smallest set of tokens whose probabilities sum to p"""
    repetition_penalty: float = 1.0
    """penalty on the logits of tokens that are already in the text"""
    max_prompt: Annotated[int, Range(0, MOST_TOKENS, hint="0 is what the context leaves")] = 0
    """maximum tokens of a prompt; 0: what the context leaves beside the reply"""
    long_prompts: Literal["cut", "refuse"] = "cut"
    """drop the oldest turns of longer prompts (counted), or refuse them"""
    generation_batch_size: Annotated[int, Range(1, MOST_TOGETHER)] = 256
    """replies that are sampled together"""
    frozen_cache_gb: Annotated[float, Range(0, MOST_GB, hint="0 keeps nothing")] = 2.0
    """memory per rank for the frozen layers' hidden states of an iteration (num_layers_unfrozen), GiB"""


@dataclass(frozen=True)
class RewardConfig:
    """Sources and processing of rewards."""

    scorers: str | None = None
    """name=PATH, comma-separated"""
    weights: str | None = None
    """name=NUMBER, comma-separated; None: 1 each"""
    eval_scorer: str | None = None
    """a scorer that is never optimised: folder, hub id, or world:SEED, that world's hidden utility; an alarm is raised
    if its score falls while the reward rises"""
    monitor_scorers: str | None = None
    """more scorers that are never optimised: name=PATH, comma-separated"""
    scorer_precision: Literal["auto", "bf16", "fp32"] = "auto"
    """of the scorers' weights, except for their heads in fp32; auto: bf16 on a GPU, fp32 on a CPU"""
    normalize: bool = True
    """shift and scale each scorer by its moments on replies of the policy before step 1"""
    cliprange_reward: Annotated[
        float, Range(0, MOST_SCORE, above=True, infinite=True, hint="5 to 10 is usual, inf clips nothing")
    ] = 10.0
    """rewards are clipped to +- this"""
    scale: Annotated[float, Range(0, MOST_SCORE, above=True)] = 1.0
    """factor of the rewards: a value head starts at 0 and learns returns of about 1 fastest"""
    missing_eos_penalty: Annotated[float, Range(0, MOST_SCORE, hint="it is subtracted from the score")] = 0.0
    """subtracted from the score of a reply that reached max_new_tokens; `reward/*` and samples are before it"""
    max_failed_rewards: Annotated[float, Range(0, 1)] = 0.1
    """share of an iteration's episodes whose reward may fail; above it the run stops"""
    reward_retries: Annotated[int, Range(0, 1000)] = 2
    """retries of a failed reward"""
    reward_timeout: Annotated[float, Range(0, MOST_SECONDS, above=True, hint="seconds")] = 360.0
    """seconds for a rank's batch after which a reward function or a scorer counts as stalled"""


@dataclass(frozen=True)
class MethodConfig:
    """The algorithm."""

    ppo_epochs: Annotated[int, Range(1, 1000)] = 4
    """passes over an iteration's rollouts"""
    init_kl_coef: Annotated[float, Range(0, 1000)] = 0.05
    """initial weight of the KL to the reference in the reward"""
    target: Annotated[
        float | None, Range(0, MOST_SCORE, above=True, also=(None,), hint="none keeps the coefficient fixed")
    ] = None
    """KL per reply, in nats, that the weight is adapted to; None: the weight is fixed"""
    horizon: Annotated[float, Range(0, 1e12, above=True, hint="10000 is usual")] = 10000.0
    """replies over which the weight adapts"""
    gamma: Annotated[float, Range(0, 1)] = 1.0
    """discount per token: below 1 short replies earn more"""
    lam: Annotated[float, Range(0, 1)] = 0.95
    """lambda of GAE"""
    cliprange: Annotated[float, Range(0, 1000, above=True, infinite=True, hint="0.2 is usual, inf clips nothing")] = 0.2
    """clip range of the policy's ratio"""
    cliprange_value: Annotated[
        float, Range(0, MOST_SCORE, above=True, infinite=True, hint="0.2 is usual, inf clips nothing")
    ] = 0.2
    """clip range of a value's change"""
    vf_coef: Annotated[float, Range(0, 1000)] = 1.0
    """weight of the value loss"""
    whiten: bool = True
    """advantages to mean 0 and variance 1 over all ranks"""
    stop_kl: Annotated[float, Range(0, MOST_SCORE, hint="0.02 to 0.1 is usual, 0 never ends epochs early")] = 0.0
    """end an iteration's epochs once the policy is this many nats per token from the one that sampled; 0: never"""
    critic: str = "head"
    """head: a new value head on the policy's trunk; else the folder of a reward model that the critic starts from, or
    `critic/` of an earlier run"""
    critic_learning_rate: Annotated[float, Range(0, 1)] = 0.0
    """peak learning rate of a value head or a separate critic; 0: learning_rate, as for all else"""
    critic_warmup: Annotated[int, Range(0, MOST_STEPS)] = 0
    """first iterations in which only the critic learns"""
    num_layers_unfrozen: Annotated[int, Range(1, 65_536, also=(-1,), hint="-1 trains all")] = -1
    """train only the top layers: those below are frozen and run once per iteration; -1: all"""
    max_kl: Annotated[float, Range(0, MOST_SCORE, hint="0 never stops")] = 100.0
    """nats per reply from the reference above which the run stops as collapsed; 0: never"""
    min_reward: Annotated[float | None, Range(-MOST_SCORE, MOST_SCORE, also=(None,), hint="none never stops")] = None
    """mean reward below which the run stops as collapsed; None: never"""
    min_length: Annotated[float, Range(0, 1, below=True, hint="a share of the first length, 0 never stops")] = 0.1
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
        """Folder of the results."""
        return self.run.output or f"outputs/{self.name}"

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer updates between two rollout phases, of one trained agent."""
        return self.method.ppo_epochs * self.rollout.num_rollouts // self.optimizer.global_batch

    @property
    def sampling(self) -> "Sampling":
        """Sampling settings. Raises InputError for values out of range."""
        from lmgym.generation.protocol import Sampling

        r = self.rollout
        return Sampling(
            r.max_new_tokens, r.temperature, r.top_k, r.top_p, r.repetition_penalty, seed=self.optimizer.seed
        )

    def accumulation_steps(self, ranks: int) -> int:
        """Micro-batches per rank and update.

        Unlike `lmgym.data.batching.accumulation_steps` it refuses no remainder: micro-batches may be smaller.
        """
        return max(1, self.optimizer.global_batch // ranks // self.optimizer.micro_batch)
