"""What every training run is made of, whatever the stage: the model, how its weights move, where and how it runs."""

from dataclasses import dataclass
from typing import Literal, Protocol


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
