"""Settings of policy optimisation: one frozen config in groups, every field a flag.

Names follow trlx where it has them, else TRL. Where a method has a value of its own, the field's default is None.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from lmgym.config import (
    CapabilitiesConfig,
    ColumnConfig,
    ModelConfig,
    OptimizerConfig,
    Range,
    RunConfig,
    SharingConfig,
    UpTo,
)
from lmgym.errors import (
    MOST_GB,
    MOST_SCORE,
    MOST_SECONDS,
    MOST_STEPS,
    MOST_TEMPERATURE,
    MOST_TOGETHER,
    MOST_TOKENS,
    InputError,
)
from ppo.algorithms.methods import Algorithm, KLEstimator, MethodName, readers, resolve

if TYPE_CHECKING:
    from lmgym.generation.protocol import Sampling  # imports torch, which --help does not need


OF_TEXT = {"top_k", "top_p", "repetition_penalty", "stop", "min_length"} | {
    "missing_eos_penalty",
    "mask_truncated",
    "overlong_penalty",
    "overlong_buffer",
}
UNREAD = {"actions": OF_TEXT, "tokens": {"action_scores"}}
"""settings that are not read, by policy_over"""


SamplerCorrection = Literal["none", "token_truncate", "sequence_mask", "geometric_mask"]
CAPS: dict[SamplerCorrection, float] = {
    "none": 1.0,
    "token_truncate": 2.0,
    "sequence_mask": 3.0,
    "geometric_mask": 1.1,
}
"""bounds of corrections, where sampler_cap is None"""


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
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the prompts")] = UpTo(64)
    """without eval_prompts: a share below 1, or a number of prompts; unless it is set, at most a tenth of them"""
    split_by: str = "prompt"
    """what is never on both sides: a prompt; first_message, a conversation with all its turns; or a column's value"""
    num_rollouts: Annotated[int, Range(1, MOST_TOGETHER)] = 128
    """episodes per iteration, over all ranks"""
    num_generations: Annotated[int | None, Range(1, MOST_TOGETHER, also=(None,))] = None
    """replies to each prompt: num_rollouts are num_rollouts / num_generations prompts"""
    max_new_tokens: int = 48
    """maximum tokens of a reply"""
    policy_over: Literal["tokens", "actions"] = "tokens"
    """what the policy is a distribution over: all texts, token by token, or the actions that observations list"""
    action_scores: Literal["sum", "token", "word"] = "sum"
    """of an action: the sum of its tokens' log-probabilities, or that divided by its tokens or words; the policy is the
    softmax of the scores over the temperature"""
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, above=True, hint="a policy must explore")] = 1.0
    """sampling temperature; log-probabilities are computed at it everywhere"""
    top_k: int = 0
    """sample from the k most likely tokens only, 0: all; biases the ratio, as top_p and repetition_penalty do"""
    top_p: float = 1.0
    """sample from the smallest set of tokens whose probabilities sum to p"""
    repetition_penalty: float = 1.0
    """penalty on the logits of tokens that are already in the text"""
    stop: tuple[str, ...] = ()
    """texts, before the first of which a reply ends"""
    max_prompt: Annotated[int, Range(0, MOST_TOKENS, hint="0 is what the context leaves")] = 0
    """maximum tokens of a prompt; 0: what the context leaves beside the reply"""
    long_prompts: Literal["cut", "refuse"] = "cut"
    """drop the oldest turns of longer prompts (counted), or refuse them"""
    generation_batch_size: Annotated[int, Range(1, MOST_TOGETHER)] = 256
    """replies that are sampled together"""
    opponents: str | None = None
    """in games of two players: None, the policy plays both sides; random or another of the game's scripted players; or
    pool:PATH, earlier policies that are saved there"""
    pool_every: Annotated[int, Range(1, MOST_STEPS)] = 10
    """iterations between two policies that are saved to the pool"""
    replay: str | None = None
    """EPISODES.jsonl[:LINE] to play again, in place of training: `lmgym replay` sets it"""
    frozen_cache_gb: Annotated[float, Range(0, MOST_GB, hint="0 keeps nothing")] = 2.0
    """memory per rank for the frozen layers' hidden states of an iteration (num_layers_unfrozen), GiB"""


@dataclass(frozen=True)
class RewardConfig:
    """Sources and processing of rewards."""

    scorers: str | None = None
    """[name=]PATH, comma-separated; a path without a name is named after its folder"""
    weights: str | None = None
    """name=NUMBER, comma-separated; None: 1 each"""
    eval_scorer: str | None = None
    """a scorer that is never optimised: folder, hub id, or world:SEED, that world's hidden utility; an alarm is raised
    if its score falls while the reward rises"""
    monitor_scorers: str | None = None
    """more scorers that are never optimised: [name=]PATH, comma-separated"""
    best_metric: str | None = None
    """model/ is the policy of the best evaluation by this monitor, eval_scorer or a name of monitor_scorers, and the
    last is in last/; None: model/ is the last"""
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
    mask_truncated: bool = False
    """replies that reached max_new_tokens have no loss"""
    overlong_penalty: Annotated[float | None, Range(0, MOST_SCORE, also=(None,))] = None
    """largest penalty of long replies: it grows from 0 over the last overlong_buffer of max_new_tokens"""
    overlong_buffer: Annotated[float, Range(0, 1, above=True, hint="a share of max_new_tokens")] = 0.2
    """share of max_new_tokens over which overlong_penalty grows"""
    max_failed_rewards: Annotated[float, Range(0, 1)] = 0.1
    """share of an iteration's episodes whose reward may fail; above it the run stops"""
    reward_retries: Annotated[int, Range(0, 1000)] = 2
    """retries of a failed reward"""
    reward_timeout: Annotated[float, Range(0, MOST_SECONDS, above=True, hint="seconds")] = 360.0
    """seconds for a rank's batch after which a reward function or a scorer counts as stalled"""


@dataclass(frozen=True)
class MethodConfig:
    """The algorithm. None: the method's own, see `--dry_run` and docs/methods.md."""

    method: MethodName = "ppo"
    """ppo has a critic; the others compare the replies to one prompt, or all replies, with each other"""
    ppo_epochs: Annotated[int | None, Range(1, 1000, also=(None,))] = None
    """passes over an iteration's rollouts"""
    init_kl_coef: Annotated[float | None, Range(0, 1000, also=(None,))] = None
    """initial weight of the KL to the reference"""
    kl_in: Literal["reward", "loss"] | None = None
    """where the KL is: subtracted from the rewards, or added to the loss"""
    kl_estimator: KLEstimator | None = None
    """of the KL per token, x = log p - log p_ref: k1 is x, k2 x^2 / 2, k3 exp(-x) - 1 + x"""
    target: Annotated[
        float | None, Range(0, MOST_SCORE, above=True, also=(None,), hint="none keeps the coefficient fixed")
    ] = None
    """KL per reply, in nats, that the weight is adapted to; None: the weight is fixed"""
    horizon: Annotated[float, Range(0, 1e12, above=True, hint="10000 is usual")] = 10000.0
    """replies over which the weight adapts"""
    reference: str | None = None
    """folder or hub id of another reference, with the policy's vocabulary; None: the policy before step 1"""
    scale_rewards: Literal["group", "batch", "none"] | None = None
    """rewards, less their group's mean, are divided by the standard deviation of their group, or of all; or not"""
    credit: Literal["episode", "turn"] = "episode"
    """several turns: all are credited with the episode's rewards, or each with those from it on, compared with the
    group's same turn"""
    cliprange: Annotated[
        float | None, Range(0, 1000, above=True, infinite=True, also=(None,), hint="0.2 is usual, inf clips nothing")
    ] = None
    """sets epsilon_low and epsilon_high"""
    epsilon_low: Annotated[float | None, Range(0, 1, also=(None,), hint="0.2 is usual, 1 has no lower bound")] = None
    """the ratio p / p_old is clipped at 1 - epsilon_low"""
    epsilon_high: Annotated[float | None, Range(0, 1000, infinite=True, also=(None,), hint="0.2 is usual")] = None
    """and at 1 + epsilon_high"""
    delta: Annotated[float | None, Range(1, 1000, above=True, also=(None,), hint="3 to 10 is usual")] = None
    """dual clip: largest ratio of tokens with a negative advantage; None: no bound"""
    importance_sampling_level: Literal["token", "sequence"] | None = None
    """the ratio of each token, or the reply's geometric mean"""
    loss_aggregation: Literal["token", "sequence", "constant"] | None = None
    """the loss is a mean over tokens; over replies, of the mean over each one's tokens; or of their sum, divided by
    max_new_tokens"""
    entropy_coef: Annotated[float, Range(0, 1000)] = 0.0
    """weight of a bonus for the entropy of the policy's distributions"""
    max_refills: Annotated[int | None, Range(0, 1000, also=(None,))] = None
    """dynamic sampling: so many times, groups whose rewards are all equal are dropped and other prompts sampled"""
    percentile: Annotated[float | None, Range(0, 1, also=(None,), hint="0.7 to 0.95 is usual")] = None
    """rft: replies at or above this quantile of their group's rewards are learned, as in SFT"""
    sampler_correction: SamplerCorrection | None = None
    """weight in the loss for p_old / p_sampler: token_truncate, that of each token, at most sampler_cap; sequence_mask,
    that of each reply, without replies above sampler_cap; geometric_mask, none, without replies whose geometric mean is
    not within 1 / sampler_cap and sampler_cap; none. None: token_truncate with another engine or async_rollouts"""
    sampler_cap: Annotated[
        float | None, Range(1, 1000, also=(None,), hint="2 to 3 is usual, 1.1 of geometric_mask")
    ] = None
    """bound of the correction; None: 2 of token_truncate, 3 of sequence_mask, 1.1 of geometric_mask"""
    reuse_logprobs: bool = True
    """in fp32 and without a critic, several updates take p_old from the sampler; off: the policy runs once more"""
    num_layers_unfrozen: Annotated[int, Range(1, 65_536, also=(-1,), hint="-1 trains all")] = -1
    """train only the top layers: those below are frozen and run once per iteration; -1: all"""
    stop_kl: Annotated[float, Range(0, MOST_SCORE, hint="0.02 to 0.1 is usual, 0 never ends epochs early")] = 0.0
    """end an iteration's epochs once the policy is this many nats per token from the one that sampled; 0: never"""


@dataclass(frozen=True)
class CriticConfig:
    """The critic of ppo, and its advantages."""

    critic: str = "head"
    """head: a new value head on the policy's trunk; else the folder of a reward model that the critic starts from, or
    `critic/` of an earlier run"""
    critic_learning_rate: Annotated[float, Range(0, 1)] = 0.0
    """peak learning rate of a value head or a separate critic; 0: learning_rate, as for all else"""
    critic_warmup: Annotated[int, Range(0, MOST_STEPS)] = 0
    """first iterations in which only the critic learns"""
    critic_warmup_until: Annotated[
        float | None, Range(-1, 1, also=(None,), hint="a share of the returns' variance")
    ] = None
    """ends the warm-up early, once the critic explains this share of the returns' variance"""
    gamma: Annotated[float, Range(0, 1)] = 1.0
    """discount per token: below 1 short replies earn more"""
    lam: Annotated[float, Range(0, 1)] = 0.95
    """lambda of GAE, for advantages and returns"""
    lam_policy: Annotated[float | None, Range(0, 1, also=(None,))] = None
    """lambda of the policy's advantages; None: lam"""
    lam_value: Annotated[float | None, Range(0, 1, also=(None,), hint="1 has no bias")] = None
    """lambda of the critic's returns; None: lam"""
    lam_adaptive: Annotated[float, Range(0, MOST_SCORE, hint="0.05 is usual, 0 is a fixed lambda")] = 0.0
    """alpha of length-adaptive GAE: lam_policy is 1 - 1 / (alpha l) for an episode of l tokens; 0: fixed"""
    cliprange_value: Annotated[
        float, Range(0, MOST_SCORE, above=True, infinite=True, hint="0.2 is usual, inf clips nothing")
    ] = 0.2
    """clip range of a value's change"""
    vf_coef: Annotated[float, Range(0, 1000)] = 1.0
    """weight of the value loss"""
    whiten: bool = True
    """advantages to mean 0 and variance 1 over all ranks"""


@dataclass(frozen=True)
class LimitConfig:
    """Limits beyond which a run ends as collapsed."""

    max_kl: Annotated[float, Range(0, MOST_SCORE, hint="0 never stops")] = 100.0
    """nats per reply from the reference above which the run stops as collapsed; without a KL penalty they are measured
    in the first iteration and before evaluations only; 0: never"""
    min_reward: Annotated[float | None, Range(-MOST_SCORE, MOST_SCORE, also=(None,), hint="none never stops")] = None
    """mean reward below which the run stops as collapsed; None: never"""
    min_length: Annotated[float, Range(0, 1, below=True, hint="a share of the first length, 0 never stops")] = 0.1
    """mean reply length, as a share of the first iteration's, below which the run stops as collapsed; 0: never"""


@dataclass(frozen=True)
class EngineConfig:
    """The engine that samples the rollouts, and the iterations that it is ahead of training."""

    engine: str | None = None
    """None: this process; vllm: a server that the run starts and stops; vllm:URL[,URL]: servers that run"""
    engine_memory: Annotated[float, Range(0, 1, above=True, hint="a share of the GPU's memory")] = 0.3
    """share of the GPU's memory for the server that the run starts"""
    engine_concurrency: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """most requests of a rank that the server has at a time"""
    async_rollouts: Annotated[int, Range(0, 1)] = 0
    """iterations that rollouts are sampled ahead: 1, the next ones are sampled while an iteration trains, by the
    weights from before it"""


@dataclass(frozen=True)
class PPOConfig:
    """An experiment of policy optimisation."""

    name: str
    """of the experiment: names the output folder"""
    policy: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    capabilities: CapabilitiesConfig = field(default_factory=CapabilitiesConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sharing: SharingConfig = field(default_factory=SharingConfig)

    @property
    def output(self) -> str:
        """Folder of the results."""
        return self.run.folder(self.name)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method with all its settings."""
        return resolve(self.method.method, (self.method, self.rollout, self.reward), self.method.cliprange)

    @property
    def is_off_policy(self) -> bool:
        """True if the distribution that samples is not exactly the one that is trained: p_old is computed then."""
        return self.engine.engine is not None or self.engine.async_rollouts > 0

    @property
    def correction(self) -> tuple[SamplerCorrection, float]:
        """The correction for the sampler's distribution, and its bound."""
        mode = self.method.sampler_correction or ("token_truncate" if self.is_off_policy else "none")
        cap = self.method.sampler_cap
        return mode, CAPS[mode] if cap is None else cap

    def refuse_unfit_ahead(self) -> None:
        """Raises InputError if rollouts are sampled ahead, and a setting decides on them in their own iteration."""
        if not self.engine.async_rollouts:
            return
        if self.algorithm.max_refills:
            raise InputError(
                f"async_rollouts=1 with max_refills={self.algorithm.max_refills}: rewards decide which groups are "
                "sampled again, while the iteration before trains; needed: --max_refills 0, or --async_rollouts 0"
            )
        if (self.rollout.opponents or "").startswith("pool:"):
            raise InputError(
                f"async_rollouts=1 with opponents={self.rollout.opponents}: an iteration may draw the policy that is "
                "saved when it begins, after its games were played; needed: scripted opponents, or --async_rollouts 0"
            )

    @property
    def sampler_notes(self) -> list[str]:
        """Lines on rollouts that are not of the policy that is trained, and on their correction."""
        mode, cap = self.correction
        texts = {
            "none": "none (--sampler_correction)",
            "token_truncate": f"token_truncate, p_old / p_sampler of each token, at most {cap:g}",
            "sequence_mask": f"sequence_mask, p_old / p_sampler of each reply, without those above {cap:g}",
            "geometric_mask": f"geometric_mask, without replies whose mean p_old / p_sampler is not {1 / cap:.3g} to "
            f"{cap:g}",
        }
        notes = [f"correction for the sampler: {texts[mode]}"] if self.is_off_policy or mode != "none" else []
        if self.engine.async_rollouts:
            notes.append("rollouts are sampled one iteration ahead: by the weights from before the one that trains")
        return notes

    @property
    def unread(self) -> set[str]:
        """Settings that the method, or a policy over actions or tokens, does not read."""
        of_critic = {field.name for field in fields(CriticConfig)}
        by_method = self.algorithm.unread | (set() if self.algorithm.has_critic else of_critic)
        return by_method | UNREAD[self.rollout.policy_over]

    def with_given(self, names: Collection[str]) -> "PPOConfig":
        """The config if the settings `names` were given: adapters take the place of the experiment's trained layers."""
        if "lora_rank" in names and self.policy.lora_rank and "num_layers_unfrozen" not in names:
            return replace(self, method=replace(self.method, num_layers_unfrozen=-1))
        return self

    def refuse_unread(self, given: Iterable[str]) -> None:
        """Raises InputError if one of the settings `given` on the command line is not read by the method."""
        for name in sorted(self.unread.intersection(given)):
            if name in UNREAD[over := self.rollout.policy_over]:
                raise InputError(
                    f"--{name} is not read by --policy_over {over}; needed: the other one, or leave --{name} out"
                )
            others = readers(name) if name in self.algorithm.unread else ["ppo"]
            raise InputError(
                f"--{name} is not read by --method {self.method.method}, only by {', '.join(others)}; needed: another "
                f"--method, or leave --{name} out"
            )

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer updates between two rollout phases, of one trained agent."""
        return self.algorithm.ppo_epochs * self.rollout.num_rollouts // self.optimizer.global_batch

    @property
    def sampling(self) -> "Sampling":
        """Sampling settings. Raises InputError for values out of range."""
        from lmgym.generation.protocol import Sampling

        r = self.rollout
        return Sampling(
            r.max_new_tokens, r.temperature, r.top_k, r.top_p, r.repetition_penalty, r.stop, seed=self.optimizer.seed
        )

    def accumulation_steps(self, ranks: int) -> int:
        """Micro-batches per rank and update.

        Unlike `lmgym.data.batching.accumulation_steps` it refuses no remainder: micro-batches may be smaller.
        """
        return max(1, self.optimizer.global_batch // ranks // self.optimizer.smallest_micro_batch)
