"""The model that is trained, and its optimizer."""

from dataclasses import dataclass
from typing import Annotated, Literal

from lmgym.config.meanings import First
from lmgym.config.ranges import SEED, Preferred, Range, UpTo
from lmgym.errors import MOST_STEPS, MOST_TOGETHER, MOST_TOKENS


@dataclass(frozen=True)
class ModelConfig:
    """The model that is trained."""

    model: Annotated[str, First()] = "gpt2"
    """Hugging Face folder or hub id to start from; owner/name@COMMIT pins a hub id"""
    trust_remote_code: bool = False
    """execute the code of a hub id's repository; needs its commit, 40 hex digits"""
    lora_rank: Annotated[int, First(), Range(0, 65_536, hint="0 trains every weight")] = 0
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
    precision: Literal["bf16", "fp32", "fp16"] = Preferred("bf16")  # type: ignore[assignment]  # a str of this value
    """of the computation; weights are trained in fp32. Unless it is set: fp32 where the device would emulate bf16"""
    gradient_checkpointing: bool = False
    """recompute each layer in the backward: less memory, a third more work"""

    @property
    def bits(self) -> int:
        """Bits of the frozen weights: 4, 8, or 0 if they are not quantised."""
        return 4 if self.load_in_4bit else 8 if self.load_in_8bit else 0


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer, schedule, batch sizes and seeds."""

    learning_rate: Annotated[float, First(), Range(0, 1)] = 9e-6
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
        int, First(), Range(1, MOST_STEPS, also=(-1,), hint="-1 stops after the epochs; --dry_run trains nothing")
    ] = -1
    """stop after so many updates (PPO: at the end of the iteration that reaches them); -1: after the epochs"""
    global_batch: Annotated[int, First(), Range(1, MOST_TOGETHER)] = 64
    """pairs, rows, groups or conversations of an update, over all ranks"""
    micro_batch: Annotated[int, Range(1, MOST_TOGETHER)] = UpTo(8)
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
        """Fewest rows of a micro-batch: where tokens limit it, a long row is alone.

        An int and not an UpTo: DeepSpeed writes it into its checkpoints, which hold no classes of ours.
        """
        return 1 if self.tokens_per_micro_batch else int(self.micro_batch)

    def batch_tokens(self, row_tokens: int) -> int:
        """Most tokens of a forward pass on rows of at most `row_tokens`."""
        most = self.tokens_per_micro_batch
        return max(most, row_tokens) if most else self.micro_batch * row_tokens
