"""Device memory of a training run, estimated before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from lmgym.aids import aid
from lmgym.config import ModelConfig
from lmgym.distributed.deepspeed_config import zero_stage
from lmgym.errors import InputError
from lmgym.models.activations import activation_bytes, empty_model
from lmgym.models.classifiers import frozen_linear_weights
from lmgym.models.config_fields import head_count, layer_count, vocabulary_size, width
from lmgym.models.embeddings import frozen_embeddings
from lmgym.models.parameters import count_parameters

GIB = 1 << 30
CHUNK_LOGITS = 1 << 26  # most logits that are held at once in training


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device, for one micro-batch."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def __add__(self, other: "MemoryEstimate") -> "MemoryEstimate":
        """Sums of both, part by part."""
        return MemoryEstimate(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


@aid("the estimate of memory", refuses=True)
def estimate_memory(
    model_config,
    tokens: int,
    settings: ModelConfig,
    deepspeed: dict[str, Any] | None,
    ranks: int,
    causal: bool = False,
    learned: int | None = None,
    counts: "WeightCounts | None" = None,
    dropout_row: int = 0,
) -> MemoryEstimate | None:
    """Bytes per device for a classifier of this config and a micro-batch of `tokens`, trained with Adam; None: unknown.

    A causal model also has logits, for `learned` of the tokens (None: all) and of CHUNK_LOGITS at most at a time.
    `counts` are those of `count_weights`, if they are known; `dropout_row` as in `activation_bytes`.

    In mixed precision DeepSpeed holds 2 bytes per weight and gradient, and 12 per trained weight for its fp32 master
    and moments; fp32, and autocast without DeepSpeed, hold 4, 4 and 8. Stage 1 shards the optimizer, 2 also the
    gradients, 3 also the weights (Rajbhandari et al. 2019, section 3.1); offload moves the optimizer (at stage 3 also
    the weights) to the host.
    """
    counts = counts or count_weights(model_config, settings, causal)
    memory = weight_memory(counts, settings.precision, deepspeed, ranks)
    if settings.bits:
        memory = replace(memory, weights=quantized_bytes(counts, model_config, settings, causal))
    logits = most_logits(model_config, tokens if learned is None else learned) if causal else 0
    engine = deepspeed is not None
    activations = activation_bytes(model_config, tokens, settings, engine, logits, dropout_row=dropout_row)
    return replace(memory, activations=activations)


def most_logits(model_config, tokens: int) -> int:
    """Logits that exist at a time where so many tokens are learned."""
    return min(tokens * vocabulary_size(model_config), CHUNK_LOGITS)


class WeightCounts(NamedTuple):
    """Numbers of a model's weights."""

    total: int
    trained: int
    frozen_linear: int
    """of frozen linear layers, which are in bf16 where autocast would make them so (`round_frozen_layers`)"""
    frozen_words: int = 0
    """of frozen embeddings of a checkpoint in bf16, which lose nothing in bf16 (`round_frozen_embeddings`)"""


def weight_memory(counts: WeightCounts, precision: str, deepspeed: dict[str, Any] | None, ranks: int) -> MemoryEstimate:
    """`estimate_memory` of so many weights, without activations."""
    stage = zero_stage(deepspeed)
    weight, moment = (2, 12) if precision != "fp32" and deepspeed is not None else (4, 8)
    rounded = counts.frozen_linear + counts.frozen_words if precision == "bf16" and deepspeed is None else 0
    zero = (deepspeed or {}).get("zero_optimization", {})
    return MemoryEstimate(
        weights=0
        if zero.get("offload_param")
        else (counts.total * weight - 2 * rounded) / (ranks if stage == 3 else 1),
        gradients=counts.trained * weight / (ranks if stage >= 2 else 1),
        optimizer=0 if zero.get("offload_optimizer") else counts.trained * moment / (ranks if stage >= 1 else 1),
        activations=0.0,
    )


def quantized_bytes(counts: WeightCounts, model_config, settings: ModelConfig, causal: bool) -> float:
    """Bytes of the weights with frozen layers in `settings.bits`; a head of its own and embeddings as in other runs."""
    words = vocabulary_size(model_config) * width(model_config)
    head = words if causal and not getattr(model_config, "tie_word_embeddings", False) else 0
    layers = max(0, counts.total - counts.trained - words - head)
    rounded = head + counts.frozen_words if settings.precision == "bf16" else 0
    return 4 * (counts.trained + words + head) - 2 * rounded + layers * settings.bits / 8


def count_weights(model_config, settings: ModelConfig | None = None, causal: bool = False) -> WeightCounts:
    """Weights of a classifier or a causal model, counted without allocating any.

    `settings` give its adapters. Raises InputError if they name modules that do not exist.
    """
    return counts_of(empty_model(model_config, settings, causal), model_config.dtype)


@aid("the check of adapters before the model is loaded", refuses=True)
def refuse_absent_modules(model_config, settings: ModelConfig, causal: bool) -> None:
    """Raises InputError if adapters are to be on modules that do not exist."""
    if settings.lora_rank:
        count_weights(model_config, settings, causal)


def counts_of(model, checkpoint: torch.dtype | None) -> WeightCounts:
    """Weights of a model at hand, whose checkpoint's config states that dtype."""
    trained, total = count_parameters(model)
    words = sum(m.weight.numel() for m in frozen_embeddings(model)) if checkpoint == torch.bfloat16 else 0
    return WeightCounts(total, trained, sum(p.numel() for p in frozen_linear_weights(model)), words)


def device_memory_gb() -> float | None:
    """GiB of this rank's GPU; None without one."""
    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else None


def check_memory(
    demand: MemoryEstimate | None, memory_gb: float | None, stage: int, micro_batch: int, more: Sequence[str] = ()
) -> None:
    """Raises InputError if the estimate exceeds `memory_gb` (GiB per device); `more` are further suggestions."""
    if demand is None or memory_gb is None or demand.total <= memory_gb * GIB:
        return
    parts = ", ".join(f"{name} {getattr(demand, name) / GIB:.1f}" for name in MemoryEstimate.__dataclass_fields__)
    large_batch = demand.activations > 0.3 * demand.total and micro_batch > 1
    next_config = {0: "zero2", 1: "zero2", 2: "zero3", 3: "zero3_offload"}[stage]
    fixes = [
        *(["a smaller --micro_batch or --tokens_per_micro_batch"] if large_batch else []),
        "--gradient_checkpointing",
        f"--deepspeed {next_config}",
        *more,
        "more devices, or --lora_rank 16",
    ]
    raise InputError(
        f"the run needs about {demand.total / GIB:.1f} GiB a device ({parts}); --memory_gb is {memory_gb:g}; "
        f"try {', '.join(fixes)}"
    )


def cache_numbers_per_token(model_config) -> int:
    """Numbers in the keys and values of a token; 0 for a model without attention, whose states do not grow."""
    heads = head_count(model_config)
    if heads is None:
        return 0
    head_width = getattr(model_config, "head_dim", None) or width(model_config) // heads
    return 2 * layer_count(model_config) * head_width * (getattr(model_config, "num_key_value_heads", None) or heads)


def check_copy_fits(numbers: int, dtype: torch.dtype) -> None:
    """Raises InputError if the GPU's free memory cannot hold a copy of so many weights in this dtype."""
    if not torch.cuda.is_available():
        return
    needed = numbers * dtype.itemsize
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        raise InputError(
            f"sampling needs a copy of the policy's weights on each rank, {needed / GIB:.1f} GiB; {free / GIB:.1f} GiB "
            "are free; needed: --deepspeed zero2, where the weights are whole anyway, or a smaller policy"
        )
