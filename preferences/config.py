"""The config of a preference run: frozen, in groups, every field a flag."""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal

from lmgym.config import (
    CapabilitiesConfig,
    ColumnConfig,
    First,
    ModelConfig,
    OptimizerConfig,
    Range,
    RowsConfig,
    RunConfig,
    SamplesConfig,
    SharingConfig,
    TrainerConfig,
)

LossName = Literal["dpo", "ipo", "kto", "simpo", "orpo", "bon"]


@dataclass(frozen=True)
class LossConfig:
    """The loss and its constants; those that a loss does not use keep their defaults."""

    loss: Annotated[LossName, First()] = "dpo"
    """dpo, ipo, simpo, orpo and bon learn from pairs; kto from single replies, liked or disliked"""
    beta: Annotated[float | None, First(), Range(0, 1000, above=True, also=(None,), hint="0.1 is usual")] = None
    """strength of the KL to the reference (simpo: scale of the reward); None: 0.1, simpo 2"""
    label_smoothing: Annotated[float, Range(0, 0.5, below=True, hint="0: labels are right")] = 0.0
    """dpo: probability that a label is wrong"""
    sft_weight: Annotated[float, Range(0, 1000, hint="0: none")] = 0.0
    """dpo, ipo, simpo: weight of the chosen replies' negative log-probability, a mean over the tokens of each"""
    gamma: Annotated[float, Range(0, 1000)] = 1.0
    """simpo: margin that the reward of the chosen reply should have"""
    odds_weight: Annotated[float, Range(0, 1000)] = 0.1
    """orpo: weight of the odds ratio beside the SFT loss (lambda)"""
    sft_share: Annotated[float, Range(0, 1)] = 0.005
    """bon: share of the SFT loss (alpha); the rest is that of the preference"""
    liked_weight: Annotated[float, Range(0, 1000)] = 1.0
    """kto: weight of liked replies"""
    disliked_weight: Annotated[float, Range(0, 1000)] = 1.0
    """kto: weight of disliked replies"""

    @property
    def strength(self) -> float:
        """Beta."""
        return self.beta if self.beta is not None else 2.0 if self.loss == "simpo" else 0.1

    @property
    def has_reference(self) -> bool:
        """True if the loss is of log-ratios to a reference."""
        return self.loss not in ("simpo", "orpo")

    @property
    def is_mean(self) -> bool:
        """True if the loss is of means over a reply's tokens rather than sums."""
        return self.loss not in ("dpo", "kto")

    @property
    def unused(self) -> list[str]:
        """Names of constants that are set and that this loss does not use."""
        used = {"loss", *CONSTANTS[self.loss]}
        return [f.name for f in fields(self) if f.name not in used and getattr(self, f.name) != f.default]


CONSTANTS: dict[LossName, tuple[str, ...]] = {
    "dpo": ("beta", "label_smoothing", "sft_weight"),
    "ipo": ("beta", "sft_weight"),
    "kto": ("beta", "liked_weight", "disliked_weight"),
    "simpo": ("beta", "gamma", "sft_weight"),
    "orpo": ("odds_weight",),
    "bon": ("beta", "sft_share"),
}
"""the constants that each loss uses"""


@dataclass(frozen=True)
class ReferenceConfig:
    """The reference, which the policy should not leave, and where its log-probabilities come from."""

    reference: str | None = None
    """folder or hub id; None: the model that training starts from"""
    reference_source: Literal["auto", "computed", "adapter"] = "auto"
    """computed: once before training, kept in OUTPUT/reference_logprobs.npz; adapter: in each update from the model
    with its LoRA adapters off; auto: adapter with LoRA, else computed"""
    reference_logprobs: str | None = None
    """reference_logprobs.npz of an earlier run on the same rows, to be read instead of computed"""


@dataclass(frozen=True)
class PreferenceConfig:
    """A preference experiment."""

    name: str
    """name of the experiment and of its output folder"""
    policy: ModelConfig = field(default_factory=ModelConfig)
    data: RowsConfig = field(default_factory=RowsConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    run: RunConfig = field(default_factory=RunConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    columns: ColumnConfig = field(default_factory=ColumnConfig)
    capabilities: CapabilitiesConfig = field(default_factory=CapabilitiesConfig)
    merge_adapter: Annotated[bool, First()] = False
    """with LoRA: save the merged weights too, as an ordinary folder model/"""
    sharing: SharingConfig = field(default_factory=SharingConfig)

    @property
    def heading(self) -> str:
        """The loss in a sentence, above --help."""
        shown = vars(self.as_resolved().loss)
        constants = ", ".join(f"{name} {shown[name]:g}" for name in CONSTANTS[self.loss.loss])
        return f"loss {self.loss.loss}: {constants}"

    def as_resolved(self) -> "PreferenceConfig":
        """The config with the loss's own values in place of None: for --help."""
        if "beta" not in CONSTANTS[self.loss.loss]:
            return self
        return replace(self, loss=replace(self.loss, beta=self.loss.strength))

    @property
    def output(self) -> str:
        """The folder of the results."""
        return self.run.folder(self.name)
