"""The config of an SFT run: frozen, in groups, every field a flag."""

from dataclasses import dataclass, field
from typing import Annotated

from lmgym.config import (
    CapabilitiesConfig,
    ColumnConfig,
    First,
    ModelConfig,
    OptimizerConfig,
    RowsConfig,
    RunConfig,
    SamplesConfig,
    SharingConfig,
    TrainerConfig,
)


@dataclass(frozen=True)
class SftConfig:
    """An SFT experiment."""

    name: str
    """name of the experiment and of its output folder"""
    policy: ModelConfig = field(default_factory=ModelConfig)
    data: RowsConfig = field(default_factory=lambda: RowsConfig("outputs/world/sft.parquet"))
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
    def output(self) -> str:
        """The folder of the results."""
        return self.run.folder(self.name)
