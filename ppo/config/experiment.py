"""An experiment of policy optimisation: one frozen config in groups, every field a flag."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

from lmgym.config import (
    CapabilitiesConfig,
    ColumnConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SharingConfig,
    largest_divisor,
)
from lmgym.errors import InputError
from ppo.algorithms.methods import Algorithm, readers, resolve
from ppo.config.method import CAPS, CriticConfig, MethodConfig, SamplerCorrection
from ppo.config.reward import LimitConfig, RewardConfig
from ppo.config.rollout import OWN, UNREAD, EngineConfig, RolloutConfig

if TYPE_CHECKING:
    from lmgym.generation.protocol import Sampling  # imports torch, which --help does not need


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
        """The method with all its settings.

        Strengths of a judge that compares are small where the replies are alike: they are not scaled by their spread.
        """
        found = resolve(self.method.method, (self.method, self.rollout, self.reward), self.method.cliprange)
        if found.scale_rewards is None or self.method.scale_rewards is not None or not self.reward.has_comparing_judge:
            return found
        method = replace(self.method, scale_rewards="none")
        return resolve(method.method, (method, self.rollout, self.reward), method.cliprange)

    def as_resolved(self) -> "PPOConfig":
        """The config with the method's own values in place of None, where the method reads them: for --help."""
        own = {name: value for name, value in vars(self.algorithm).items() if name not in self.algorithm.unread}
        config = self
        for name in ("method", "rollout", "reward"):
            group = getattr(config, name)
            values = {key: own[key] for key, value in vars(group).items() if value is None and key in own}
            config = replace(config, **{name: replace(group, **values)})
        return config

    @property
    def heading(self) -> str:
        """The method in a sentence, above --help."""
        return str(self.algorithm)

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

    def refuse_unfit_sleep(self) -> None:
        """Raises InputError if a server is to sleep that is another's, or that samples while the policy trains."""
        if not self.engine.engine_sleep:
            return
        if self.engine.engine != OWN:
            raise InputError(
                f"engine_sleep with engine={self.engine.engine}: only a server that the run starts sleeps; "
                "needed: --engine vllm, or no --engine_sleep"
            )
        if self.engine.async_rollouts:
            raise InputError(
                "engine_sleep with async_rollouts=1: the server samples while the policy trains; needed: "
                "--async_rollouts 0, or no --engine_sleep"
            )

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
        """The config if the settings `names` were given: adapters take the place of the experiment's trained layers,
        a reward that of its scorers, with the penalty that was measured against them, passes over the prompts that of
        its updates, and a batch that fits into the rollouts that of the experiment.
        """
        config = self
        if "num_rollouts" in names and "global_batch" not in names:
            config = replace(self, optimizer=self._fitting_batches("micro_batch" in names))
        if "epochs" in names and "max_updates" not in names:
            config = replace(config, optimizer=replace(config.optimizer, max_updates=-1))
        if "lora_rank" in names and self.policy.lora_rank and "num_layers_unfrozen" not in names:
            config = replace(config, method=replace(self.method, num_layers_unfrozen=-1))
        if "reward" in names and self.reward.reward and "scorers" not in names:
            penalty = self.reward.missing_eos_penalty if "missing_eos_penalty" in names else 0.0
            config = replace(config, reward=replace(self.reward, scorers=None, missing_eos_penalty=penalty))
        return config

    def _fitting_batches(self, keeps_micro: bool) -> OptimizerConfig:
        """The largest batch up to the experiment's that divides the rollouts, in micro-batches that divide it."""
        optimizer, rollouts, micro = self.optimizer, self.rollout.num_rollouts, self.optimizer.micro_batch
        for batch in range(min(optimizer.global_batch, rollouts), 0, -1):
            if rollouts % batch == 0 and (not keeps_micro or batch % micro == 0):
                fitting = micro if keeps_micro else largest_divisor(batch, micro)
                return replace(optimizer, global_batch=batch, micro_batch=fitting)
        return optimizer

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
