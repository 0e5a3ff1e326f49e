"""Settings that all stages share, in groups whose fields are flags: import each from here. May import lmgym.errors.

Each file is a subject: model, run, rows, training; ranges has the numbers that a field may be."""

from lmgym.config.meanings import First, Means, meanings
from lmgym.config.model import ModelConfig, OptimizerConfig
from lmgym.config.ranges import SEED, Preferred, Range, UpTo, check_ranges, largest_divisor, seed_settings
from lmgym.config.rows import PASSAGE, RATIONALE, VERDICT, ColumnConfig, RowsConfig, TextForm, check_eval_size
from lmgym.config.run import (
    FREE_SETTINGS,
    LengthSettings,
    RunConfig,
    SharingConfig,
    StageConfig,
    Tracking,
    check_shared_settings,
)
from lmgym.config.training import CAPABILITIES_BATCH, CapabilitiesConfig, SamplesConfig, TrainerConfig

__all__ = [
    "CAPABILITIES_BATCH",
    "FREE_SETTINGS",
    "PASSAGE",
    "RATIONALE",
    "SEED",
    "VERDICT",
    "CapabilitiesConfig",
    "ColumnConfig",
    "First",
    "LengthSettings",
    "Means",
    "ModelConfig",
    "OptimizerConfig",
    "Preferred",
    "Range",
    "RowsConfig",
    "RunConfig",
    "SamplesConfig",
    "SharingConfig",
    "StageConfig",
    "TextForm",
    "Tracking",
    "TrainerConfig",
    "UpTo",
    "check_eval_size",
    "check_ranges",
    "check_shared_settings",
    "largest_divisor",
    "meanings",
    "seed_settings",
]
