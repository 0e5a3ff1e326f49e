"""Settings that all stages share, with the range of each: the model, the optimizer, and the run."""

import functools
import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Literal, Protocol, get_type_hints

from lmgym.errors import (
    FEWEST_TOKENS,
    MOST_GB,
    MOST_SECONDS,
    MOST_SEED,
    MOST_STEPS,
    MOST_TEMPERATURE,
    MOST_TOGETHER,
    MOST_TOKENS,
    NAME,
    InputError,
    shown,
)


@dataclass(frozen=True)
class Range:
    """The numbers that a setting may have, as an annotation: `Annotated[float, Range(0, 1)]`. NaN never fits."""

    low: float
    high: float
    above: bool = False
    """`low` itself does not fit"""
    below: bool = False
    """`high` itself does not fit"""
    infinite: bool = False
    """inf fits"""
    also: tuple[float | None, ...] = ()
    """further values that fit, such as -1 or None"""
    hint: str = ""
    """advice at the end of the error message"""

    def fits(self, value: object) -> bool:
        """True if a setting may have the value."""
        if value in self.also:
            return True
        if not isinstance(value, int | float):
            return False
        if value == math.inf:
            return self.infinite
        return (self.low < value if self.above else self.low <= value) and (
            value < self.high if self.below else value <= self.high
        )

    def check(self, name: str, value: object) -> None:
        """Raises InputError if the value does not fit."""
        if not self.fits(value):
            raise InputError(f"{name}={shown(value)}; needed: {self}")

    def __str__(self) -> str:
        """For messages: `0 to 1`, `above 0; at most 1,000, or inf; 0.2 is usual`."""
        low, high = f"{self.low:,.15g}", f"{self.high:,.15g}"
        if self.above:
            bounds = f"above {low}, below {high}" if self.below else f"above {low}; at most {high}"
        else:
            bounds = f"{low} or more, below {high}" if self.below else f"{low} to {high}"
        others = [*(["inf"] if self.infinite else []), *("none" if v is None else f"{v:,.15g}" for v in self.also)]
        return "".join([bounds, *(f", or {other}" for other in others), self.hint and f"; {self.hint}"])


class UpTo(int):
    """A number that the user did not set: fewer where the data are few. A plain number is taken as it is."""


SEED = Range(0, MOST_SEED)
"""of numpy and torch"""


def check_ranges(config: object) -> None:
    """Raises InputError for the first field, also of a group, that is outside its `Range`, in declaration order."""
    ranges = _ranges(type(config))  # type: ignore[arg-type]
    for field in fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if is_dataclass(value):
            check_ranges(value)
        elif field.name in ranges:
            ranges[field.name].check(field.name, value)


@functools.cache
def _ranges(kind: type) -> dict[str, Range]:
    """The ranges of a dataclass by field."""
    hints = get_type_hints(kind, include_extras=True)
    extras = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: extra for name, found in extras.items() for extra in found if isinstance(extra, Range)}


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    model: str = "gpt2"
    """Hugging Face folder or hub id to start from; owner/name@COMMIT pins a hub id"""
    trust_remote_code: bool = False
    """execute the code of a hub id's repository; needs its commit, 40 hex digits"""
    lora_rank: Annotated[int, Range(0, 65_536, hint="0 trains every weight")] = 0
    """rank of LoRA adapters on the trunk; 0 trains every weight"""
    lora_alpha: Annotated[int, Range(0, 10**6, above=True, hint="twice lora_rank is usual")] = 32
    """scale of the adapters: alpha / rank"""
    lora_target_modules: str = "all-linear"
    """layers that get adapters: names separated by commas, or a regular expression that matches whole names"""
    modules_to_save: str = ""
    """modules that train in full beside the adapters, such as embed_tokens; separated by commas"""
    load_in_4bit: bool = False
    """frozen weights under adapters in 4 bits (nf4); needs bitsandbytes"""
    load_in_8bit: bool = False
    """the same in 8 bits"""
    freeze_embeddings: bool = False
    """do not train the embeddings: with noisy labels a small model overfits them to single words"""
    precision: Literal["bf16", "fp32", "fp16"] = "bf16"
    """of the computation; weights are trained in fp32"""
    gradient_checkpointing: bool = False
    """recompute each layer in the backward: less memory, a third more work"""

    @property
    def bits(self) -> int:
        """Bits of the frozen weights: 4, 8, or 0 if they are not quantised."""
        return 4 if self.load_in_4bit else 8 if self.load_in_8bit else 0


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer, schedule, batch sizes and seeds."""

    learning_rate: Annotated[float, Range(0, 1)] = 9e-6
    """peak learning rate of AdamW"""
    weight_decay: Annotated[float, Range(0, 100)] = 0.0
    """of AdamW, on matrices only"""
    adam_beta2: Annotated[float, Range(0, 1, below=True, hint="0.999 is usual")] = 0.999
    """decay of AdamW's second moment"""
    warmup: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of all updates")] = 0.03
    """a share of all updates below 1, or a number of updates"""
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "cosine"
    """of the learning rate after the warm-up"""
    epochs: Annotated[float, Range(0, 10_000, above=True, hint="below 1 a share of the rows")] = 1.0
    """passes over the rows"""
    max_updates: Annotated[
        int, Range(1, MOST_STEPS, also=(-1,), hint="-1 stops after the epochs; --dry_run trains nothing")
    ] = -1
    """stop after so many updates (PPO: at the end of the iteration that reaches them); -1: after the epochs"""
    global_batch: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """pairs, rows, groups or conversations of an update, over all ranks"""
    micro_batch: Annotated[int, Range(1, MOST_TOGETHER)] = 8
    """pairs, rows, groups or conversations of a forward pass on one rank"""
    tokens_per_micro_batch: Annotated[
        int | None, Range(1, MOST_TOKENS, also=(None,), hint="none: --micro_batch rows")
    ] = None
    """most tokens of a forward pass on one rank, in place of micro_batch: rows are cut where they fill it, and a longer
    row runs alone; None: micro_batch rows"""
    max_grad_norm: Annotated[float, Range(0, 1e9, above=True, hint="1e9 leaves gradients as they are")] = 1.0
    """gradients are clipped to this norm"""
    seed: Annotated[int, SEED] = 0
    """of the order of rows, a new head, dropout and sampling"""
    split_seed: Annotated[int, SEED] = 0
    """of the held-out rows and of the rows that limits select: independent of seed"""

    @property
    def smallest_micro_batch(self) -> int:
        """Fewest rows of a micro-batch: where tokens limit it, a long row is alone."""
        return 1 if self.tokens_per_micro_batch else self.micro_batch

    def batch_tokens(self, row_tokens: int) -> int:
        """Most tokens of a forward pass on rows of at most `row_tokens`."""
        most = self.tokens_per_micro_batch
        return max(most, row_tokens) if most else self.micro_batch * row_tokens


Tracking = Literal[
    "auto", "wandb", "offline", "tensorboard", "trackio", "wandb,tensorboard", "offline,tensorboard", "none"
]  # fmt: skip


@dataclass(frozen=True)
class RunConfig:
    """Output, engine, evaluation, checkpoints and limits of a run."""

    output: str = ""
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


@dataclass(frozen=True)
class TrainerConfig:
    """Settings of the stages that run Hugging Face's Trainer."""

    lora_dropout: Annotated[float, Range(0, 1, below=True)] = 0.0
    """dropout in front of the adapters"""
    packed: bool | None = None
    """run rows packed, with shared prefixes; None: if the model gives the same results packed and alone"""
    data_workers: Annotated[int, Range(0, 1024)] = 0
    """processes that prepare batches"""
    log_updates: Annotated[int, Range(1, MOST_STEPS)] = 10
    """updates between two lines of metrics"""
    best_metric: str | None = "loss"
    """model/ is the best evaluation by this held-out metric, or by SET/METRIC of another evaluation; the last model is
    in last/; none: model/ is the last"""
    early_stopping: Annotated[int, Range(0, MOST_STEPS, hint="0 stops at the last update")] = 0
    """stop after so many evaluations in a row that are not better than the best; 0: never"""


TextForm = Literal["auto", "text", "transcript", "messages"]
PASSAGE = "(context)"
"""our name of the column that --context_column names: one that is called context is not read without being named"""


@dataclass(frozen=True)
class ColumnConfig:
    """Names of columns and forms of their texts, where they are not the usual ones. Of several data sets a name is that
    of all, or there is one for each, separated by commas."""

    prompt_column: str | None = None
    """column of the prompt, instruction or question; None: found by its name"""
    chosen_column: str | None = None
    """column of the preferred reply"""
    rejected_column: str | None = None
    """column of the other reply"""
    reply_column: str | None = None
    """column of a single reply"""
    messages_column: str | None = None
    """column of whole conversations"""
    label_column: str | None = None
    """column that says whether a reply was liked"""
    system_column: str | None = None
    """column of the system message; None: system or system_prompt"""
    context_column: str | None = None
    """column of a passage that the prompt asks about, put below the prompt; unused: leave such columns out"""
    prompt_format: TextForm = "auto"
    """of prompts and conversations in text: plain text, transcripts with marks (User:, Human:) or JSON of messages;
    auto: decided from all rows of a data set"""
    reply_format: TextForm = "auto"
    """of replies in text"""

    @property
    def named(self) -> dict[str, tuple[str, str]]:
        """(flag, column) of the columns that are named, by our name of each."""
        ours = {"reply": "completion", "context": PASSAGE}
        flags = [field.name for field in fields(self) if field.name.endswith("_column")]
        found = {flag.removesuffix("_column"): flag for flag in flags if getattr(self, flag)}
        return {ours.get(name, name): (flag, getattr(self, flag)) for name, flag in found.items()}


@dataclass(frozen=True)
class RowsConfig:
    """Source, limits, split and truncation of the rows."""

    dataset: str = "Anthropic/hh-rlhf"
    """file (JSON, Parquet, Arrow, CSV), folder, also of save_to_disk, or hub id; several are separated by commas"""
    dataset_weights: str | None = None
    """of several data sets: numbers separated by commas, in whose proportion rows are used: the set that is scarcest
    for its weight is used whole, of the others a random part (split_seed); None: all rows"""
    dataset_split: str = "train"
    """split of a hub id, or the start of the file names in a folder"""
    eval_dataset: str | None = None
    """rows to evaluate on; None: a part of the dataset (split_by)"""
    eval_size: Annotated[float, Range(0, MOST_STEPS, hint="below 1 a share of the rows")] = 0.05
    """without eval_dataset: a share below 1, or a number of rows"""
    split_by: str = "prompt"
    """what is never on both sides: a prompt; first_message, a conversation with all its turns; or a column's value.
    Logs are split by user"""
    train_size: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """train on at most this many rows; None: all"""
    max_rows: Annotated[int | None, Range(1, MOST_STEPS, also=(None,), hint="none for all")] = None
    """use only the first rows of each data set"""
    max_length: Annotated[int, Range(FEWEST_TOKENS, MOST_TOKENS, hint="fewer hold no conversation")] = 1024
    """tokens of a prompt with its reply; longer ones lose their oldest turns, the reply stays whole (SFT: longer
    conversations become several rows)"""


@dataclass(frozen=True)
class SamplesConfig:
    """Fixed prompts that are answered during training."""

    prompts: str | None = None
    """conversations, in any form, whose last reply is generated; None: those of held-out rows"""
    sample_prompts: Annotated[int, Range(0, 10_000)] = 8
    """number of prompts; 0: none"""
    sample_tokens: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    """most tokens of a reply"""
    temperature: Annotated[float | None, Range(0, MOST_TEMPERATURE, also=(None,), hint="0 is greedy")] = None
    """of the sampling; 0 takes the likeliest token; None: the model's own (generation_config.json), else 1"""
    top_p: Annotated[float | None, Range(0, 1, above=True, also=(None,), hint="1 keeps every token")] = None
    """only the fewest likeliest tokens whose probabilities sum to p; None: the model's own, else 1 (all)"""
    scorers: str | None = None
    """scorers of the replies: [name=]PATH, separated by commas"""
    scorer_precision: Literal["auto", "bf16", "fp32"] = "auto"
    """of scorers' weights, but for their heads in fp32; auto: bf16 on a GPU, fp32 on a CPU"""


@dataclass(frozen=True)
class CapabilitiesConfig:
    """Tests by lm-eval at each evaluation, the first of which is before training. An extra: lmgym[capabilities]."""

    capabilities: str | None = None
    """tasks of lm-eval: names such as gsm8k, task files (.yaml) and folders of them, separated by commas; None: none"""
    capabilities_data: str | None = None
    """files with the rows of tasks: TASK=FILE, separated by commas; None: the rows that a task names"""
    capabilities_limit: Annotated[int, Range(0, MOST_STEPS, hint="0 takes all")] = 100
    """most rows of a task; 0: all"""
    capabilities_batch: Annotated[int, Range(1, MOST_TOGETHER)] = 8
    """rows that a rank answers together"""


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


def check_eval_size(size: float, noun: str) -> None:
    """Raises InputError for a number of examples above 1 that is not whole; `noun`: "rows"."""
    if size > 1 and size != int(size):
        raise InputError(f"eval_size={shown(size)}; needed: a share below 1, or a whole number of {noun}")
