"""Settings that all stages share, and their bounds: the model, how its weights move, where and how it runs."""

from dataclasses import dataclass
from typing import Literal, Protocol

from lmgym.errors import (
    MOST_GB,
    MOST_SECONDS,
    MOST_STEPS,
    MOST_TOGETHER,
    MOST_TOKENS,
    NAME,
    Bound,
    count_bound,
    seed_bound,
)


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    model: str = "gpt2"
    """Hugging Face folder or hub id to start from; owner/name@COMMIT pins it"""
    trust_remote_code: bool = False
    """execute the code that a hub id brings along; needs its commit, 40 hex digits"""
    lora_rank: int = 0
    """rank of LoRA adapters on the trunk; 0 trains every weight"""
    lora_alpha: int = 32
    """scale of the adapters: alpha / rank"""
    lora_dropout: float = 0.0
    """dropout in front of the adapters"""
    lora_target_modules: str = "all-linear"
    """layers that get adapters: names, more of them behind commas, or a regular expression of whole names"""
    modules_to_save: str = ""
    """modules that train in full beside the adapters, such as embed_tokens; more of them behind commas"""
    load_in_4bit: bool = False
    """frozen weights under adapters in 4 bits (nf4); needs bitsandbytes and a GPU"""
    load_in_8bit: bool = False
    """the same in 8 bits"""
    freeze_embeddings: bool = False
    """leave the word vectors as they are: noisy labels of small models bend them to single words"""
    precision: Literal["bf16", "fp32", "fp16"] = "bf16"
    """of the computation; weights are trained in fp32"""
    gradient_checkpointing: bool = False
    """recompute each layer in the backward: less memory, a third more work"""
    packed: bool | None = None
    """rows end to end with shared prefixes; None: where the family is tested for it"""


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights move."""

    learning_rate: float = 9e-6
    """peak learning rate of AdamW"""
    weight_decay: float = 0.0
    """of AdamW, on matrices only"""
    adam_beta2: float = 0.999
    """decay of AdamW's second moment"""
    warmup: float = 0.03
    """a share of all updates below 1, or a number of updates"""
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "cosine"
    """what follows the warm-up"""
    epochs: float = 1.0
    """passes over the rows"""
    max_updates: int = -1
    """stop after so many updates, PPO with the iteration in which they are reached; -1: after the epochs"""
    global_batch: int = 64
    """pairs, rows, groups or conversations an update, over all ranks"""
    micro_batch: int = 8
    """pairs, rows, groups or conversations a forward and rank"""
    max_grad_norm: float = 1.0
    """gradients are scaled down to this norm"""
    seed: int = 0
    """of the order of rows, a new head, dropout and sampling"""
    split_seed: int = 0
    """of which rows are held out, and which are used where a limit leaves some out: the same for every seed"""


@dataclass(frozen=True)
class RunConfig:
    """Where and how it runs."""

    output: str = ""
    """folder of the results; empty: outputs/ and the experiment's name"""
    deepspeed: str | None = None
    """DeepSpeed config, such as configs/zero2.json; None: plain, or DDP under torchrun"""
    tracking: Literal["auto", "wandb", "offline", "none"] = "auto"
    """besides metrics.jsonl: auto uses wandb where WANDB_API_KEY is set"""
    log_updates: int = 10
    """updates between two lines of metrics"""
    eval_updates: int = 0
    """updates between two evaluations; 0: five in a run"""
    data_workers: int = 0
    """processes that prepare batches"""
    save_updates: int = 0
    """updates between two checkpoints; 0: five in a run; -1: none but when asked to leave"""
    save_total_limit: int = 2
    """so many checkpoints are kept, the newest"""
    resume: Literal["auto", "never"] = "auto"
    """auto goes on from the newest whole checkpoint of an unfinished run of the same command"""
    reshard: bool = False
    """convert the checkpoint of another number of ranks"""
    stall_timeout: float = 1200.0
    """seconds without progress after which a run says where its ranks stand, and ends; 0: never"""
    memory_gb: float | None = None
    """memory of a device in GiB, to refuse what will not fit; None: what the GPU has"""
    dry_run: bool = False
    """resolve everything, show three rows as the model will see them, and stop"""


class StageConfig(Protocol):
    """What a stage's config has, besides groups of its own."""

    @property
    def name(self) -> str:
        """Of the experiment."""
        ...

    @property
    def output(self) -> str:
        """The folder of the results."""
        ...

    @property
    def optimizer(self) -> OptimizerConfig:
        """How the weights move."""
        ...

    @property
    def run(self) -> RunConfig:
        """Where and how it runs."""
        ...


class RowSettings(Protocol):
    """Where rows come from and how they are split and cut; each field means what the stage's own config says."""

    @property
    def dataset(self) -> str: ...
    @property
    def dataset_split(self) -> str: ...
    @property
    def eval_dataset(self) -> str | None: ...
    @property
    def eval_size(self) -> float: ...
    @property
    def train_size(self) -> int | None: ...
    @property
    def max_rows(self) -> int | None: ...
    @property
    def max_length(self) -> int: ...


def bounds_of_stages(config: StageConfig, model: ModelConfig) -> list[Bound]:
    """Of the settings that all stages share."""
    named = NAME.fullmatch(config.name) is not None
    return [
        Bound("name", config.name, named, "1 to 200 letters, digits and _ . -, not dots alone: it names a folder"),
        *_of_the_model(model),
        *_of_the_optimizer(config),
        *_of_the_run(config),
    ]


def bounds_of_rows(rows: RowSettings) -> list[Bound]:
    """Of where rows come from and how they are split and cut."""
    return [
        held_out_bound(rows.eval_size, "rows"),
        count_bound("train_size", rows.train_size, MOST_STEPS, "1 or more, or none for all"),
        count_bound("max_rows", rows.max_rows, MOST_STEPS, "1 or more, or none for all"),
        count_bound("max_length", rows.max_length, MOST_TOKENS),
    ]


def held_out_bound(size: float, noun: str) -> Bound:
    """Of `eval_size`."""
    fits = 0 <= size < 1 or (1 <= size <= MOST_STEPS and size == int(size))
    return Bound("eval_size", size, fits, f"a share below 1, or a whole number of {noun}; at most {MOST_STEPS:,}")


def _of_the_model(m: ModelConfig) -> list[Bound]:
    rank, alpha, targets, saved = m.lora_rank, m.lora_alpha, m.lora_target_modules, m.modules_to_save
    return [
        Bound("lora_rank", rank, 0 <= rank <= 65_536, "1 or more, or 0 to train every weight; at most 65,536"),
        Bound("lora_alpha", alpha, 0 < alpha <= 10**6, "above 0; twice lora_rank is usual; at most 1,000,000"),
        Bound("lora_dropout", m.lora_dropout, 0 <= m.lora_dropout < 1, "0 or more, below 1"),
        Bound(
            "lora_target_modules",
            targets,
            bool(targets) and (rank > 0 or targets == "all-linear"),
            "all-linear, names, or a regular expression, with --lora_rank above 0: it says where adapters stand",
        ),
        Bound("modules_to_save", saved, not saved or rank > 0, "none, or --lora_rank above 0: without it all trains"),
    ]


def _of_the_optimizer(config: StageConfig) -> list[Bound]:
    o = config.optimizer
    return [
        Bound("learning_rate", o.learning_rate, 0 <= o.learning_rate <= 1, "0 or more; at most 1"),
        Bound("weight_decay", o.weight_decay, 0 <= o.weight_decay <= 100, "0 or more; at most 100"),
        Bound("adam_beta2", o.adam_beta2, 0 <= o.adam_beta2 < 1, "0 or more, below 1; .999 is usual"),
        Bound(
            "warmup",
            o.warmup,
            0 <= o.warmup <= MOST_STEPS,
            f"a share of all updates below 1, or a number of updates; at most {MOST_STEPS:,}",
        ),
        Bound(
            "epochs", o.epochs, 0 < o.epochs <= 10_000, "above 0; a part of the rows is a share below 1; at most 10,000"
        ),
        Bound(
            "max_updates",
            o.max_updates,
            o.max_updates == -1 or 1 <= o.max_updates <= MOST_STEPS,
            "1 or more, or -1 to stop after the epochs; --dry_run trains nothing; at most 1,000,000,000",
        ),
        count_bound("global_batch", o.global_batch, MOST_TOGETHER),
        count_bound("micro_batch", o.micro_batch, MOST_TOGETHER),
        Bound(
            "max_grad_norm",
            o.max_grad_norm,
            0 < o.max_grad_norm <= 1e9,
            "above 0; 1e9 leaves gradients as they are; at most 1,000,000,000",
        ),
        seed_bound("seed", o.seed),
        seed_bound("split_seed", o.split_seed),
    ]


def _of_the_run(config: StageConfig) -> list[Bound]:
    r, most = config.run, f"; at most {MOST_STEPS:,}"
    return [
        count_bound("log_updates", r.log_updates, MOST_STEPS),
        Bound(
            "eval_updates",
            r.eval_updates,
            0 <= r.eval_updates <= MOST_STEPS,
            f"1 or more, or 0 for five evaluations in a run{most}",
        ),
        Bound("data_workers", r.data_workers, 0 <= r.data_workers <= 1024, "0 or more; at most 1,024"),
        Bound(
            "save_updates",
            r.save_updates,
            -1 <= r.save_updates <= MOST_STEPS,
            f"1 or more, 0 for five checkpoints in a run, or -1 for none but when asked to leave{most}",
        ),
        count_bound("save_total_limit", r.save_total_limit, 10_000, "1 or more; --save_updates -1 saves none"),
        Bound(
            "stall_timeout",
            r.stall_timeout,
            0 <= r.stall_timeout <= MOST_SECONDS,
            f"seconds, or 0 to wait for ever; at most {MOST_SECONDS:,}",
        ),
        Bound(
            "memory_gb",
            r.memory_gb,
            r.memory_gb is None or 0 < r.memory_gb <= MOST_GB,
            f"above 0; leave it out for the GPU's own; at most {MOST_GB:,.0f}",
        ),
    ]
