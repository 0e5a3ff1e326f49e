"""Output, checkpoints and limits of a run, its names on the hub and on trackers, and what all stages check."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal, Protocol

from lmgym.config.meanings import First
from lmgym.config.model import ModelConfig, OptimizerConfig
from lmgym.config.ranges import Range, check_ranges
from lmgym.errors import MOST_GB, MOST_SECONDS, MOST_STEPS, NAME, InputError, shown

Tracking = Literal[
    "auto", "wandb", "offline", "tensorboard", "trackio", "wandb,tensorboard", "offline,tensorboard", "none"
]  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """Output, engine, evaluation, checkpoints and limits of a run."""

    output: Annotated[str, First()] = ""
    """folder of the results; empty: outputs/NAME of the experiment, or outputs/NAME/2, /3, ... if that holds a run"""
    deepspeed: str | None = None
    """zero1, zero2, zero2_offload, zero3, zero3_offload or the path of a DeepSpeed config; None: plain, or DDP"""
    tracking: Tracking = "auto"
    """in addition to metrics.jsonl; auto: wandb if WANDB_API_KEY is set; tensorboard: files in OUTPUT/tensorboard"""
    eval_updates: Annotated[int, Range(0, MOST_STEPS, hint="0: five evaluations in a run")] = 0
    """updates between two evaluations; 0: five in a run"""
    save_updates: Annotated[
        int, Range(-1, MOST_STEPS, hint="0: five checkpoints in a run, -1: only when asked to stop")
    ] = 0
    """updates between two checkpoints; 0: five in a run; -1: only when asked to stop"""
    save_total_limit: Annotated[int, Range(1, 10_000, hint="--save_updates -1 saves none")] = 2
    """number of newest checkpoints that are kept"""
    resume: Literal["auto", "never"] = "auto"
    """auto resumes from the newest complete checkpoint of an unfinished run of the same command; never begins a new
    run, in a numbered folder if the folder holds one"""
    reshard: bool = False
    """convert a checkpoint that was written by another number of ranks"""
    stall_timeout: Annotated[float, Range(0, MOST_SECONDS, hint="0 waits for ever")] = 1200.0
    """seconds without progress after which a run prints the stacks of its ranks and ends; 0: never"""
    memory_gb: Annotated[
        float | None, Range(0, MOST_GB, above=True, also=(None,), hint="none: the memory of the GPU")
    ] = None
    """memory of a device in GiB, to refuse a run that will not fit; None: the memory of the GPU"""
    dry_run: bool = False
    """check everything, show three rows as the model will see them, and stop"""

    def folder(self, name: str) -> str:
        """The folder of the results of an experiment of that name."""
        return self.output or f"outputs/{name}"


@dataclass(frozen=True)
class SharingConfig:
    """Names of a run on the hub and on trackers. Keys come from the environment only: HF_TOKEN, WANDB_API_KEY."""

    push_to_hub: str | None = None
    """OWNER/NAME, a model repository of the Hugging Face hub, which is made if it is not there: main has the model that
    the run keeps, pushed whenever a better one is saved; last, a branch, the last one where the best is kept"""
    hub_private: bool = False
    """make the repository of push_to_hub a private one"""
    run_name: str | None = None
    """name of the run on trackers; None: WANDB_NAME, or the experiment's name"""
    wandb_project: str | None = None
    """project of wandb and trackio; None: WANDB_PROJECT, or lmgym"""
    wandb_entity: str | None = None
    """user or team of wandb; None: WANDB_ENTITY, or the key's own"""
    wandb_group: str | None = None
    """group of runs; None: WANDB_RUN_GROUP, or none"""
    wandb_tags: str | None = None
    """separated by commas; None: WANDB_TAGS, or none"""


FREE_SETTINGS = frozenset(
    {
        *("output", "tracking", "memory_gb", "data_workers", "dry_run"),
        *("save_total_limit", "resume", "reshard", "stall_timeout"),
        *("engine_memory", "engine_sleep"),
        *("capabilities", "capabilities_data", "capabilities_limit"),
        *(field.name for field in fields(SharingConfig)),
    }
)
"""settings on which nothing of the training depends: they may differ between a run and its resumption, or its like"""


class StageConfig(Protocol):
    """The part of a config that all stages share; `output` is the folder of the results."""

    @property
    def name(self) -> str: ...
    @property
    def output(self) -> str: ...
    @property
    def optimizer(self) -> OptimizerConfig: ...
    @property
    def run(self) -> RunConfig: ...
    @property
    def sharing(self) -> SharingConfig: ...


class LengthSettings(Protocol):
    """The truncation of rows or prompts; documented in each stage's config."""

    @property
    def max_length(self) -> int: ...


def check_shared_settings(config: StageConfig, model: ModelConfig) -> None:
    """Raises InputError for a setting out of its range, and for shared settings that do not go together."""
    check_ranges(config)
    if not NAME.fullmatch(config.name):
        needed = "1 to 200 letters, digits and _ . -, not dots alone: it names a folder"
        raise InputError(f"name={shown(config.name)}; needed: {needed}")
    targets, saved = model.lora_target_modules, model.modules_to_save
    if not targets or (targets != "all-linear" and not model.lora_rank):
        needed = "all-linear, names, or a regular expression, with --lora_rank above 0: the layers that get adapters"
        raise InputError(f"lora_target_modules={shown(targets)}; needed: {needed}")
    if saved and not model.lora_rank:
        needed = "none, or --lora_rank above 0: without it every module trains"
        raise InputError(f"modules_to_save={shown(saved)}; needed: {needed}")
