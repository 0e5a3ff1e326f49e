"""What a training run needs of a device's memory, estimated before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoModelForCausalLM

from lmgym.config import ModelConfig
from lmgym.distributed.deepspeed_config import zero_stage
from lmgym.errors import InputError
from lmgym.models.config_fields import head_count, layer_count, vocabulary_size, width
from lmgym.models.headed import new_classifier
from lmgym.models.lora import add_lora
from lmgym.models.parameters import count_parameters
from lmgym.models.quantized import bits_of

GIB = 1 << 30


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device: of weights, gradients, optimizer state, and activations of one micro-batch."""

    weights: float
    gradients: float
    optimizer: float
    activations: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def __add__(self, other: "MemoryEstimate") -> "MemoryEstimate":
        """Of both, part by part."""
        return MemoryEstimate(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def estimate(
    model_config,
    tokens: int,
    precision: str,
    deepspeed: dict[str, Any] | None,
    ranks: int,
    checkpointing: bool = False,
    settings: ModelConfig | None = None,
    causal: bool = False,
) -> MemoryEstimate:
    """Bytes a device for a classifier of this config and a micro-batch of `tokens`, trained with Adam.

    A causal model has logits besides: fp32, their softmax and their gradient, at each token.

    In mixed precision DeepSpeed holds 2 bytes a weight and gradient and 12 a trained weight for its fp32 master and
    moments; fp32, and autocast without DeepSpeed, hold 4, 4 and 8. Level 1 shards the optimizer, 2 the gradients too,
    3 the weights too (Rajbhandari et al. 2019, section 3.1); offload moves the optimizer (at level 3 the weights too)
    to the host. Activations are 34 bytes a token, layer and hidden unit in 16 bits (Korthikanti et al. 2022, eq. 2,
    without the attention matrix), twice that in fp32; with checkpointing 2 (4) a layer and 34 (68) for the one in work.
    """
    counts = count_weights(model_config, settings, causal)
    weights = of_weights(*counts, precision, deepspeed, ranks)
    if settings is not None and (bits := bits_of(settings)):
        weights = replace(weights, weights=bytes_in_bits(counts, model_config, bits))
    per_token = 3 * 4 * vocabulary_size(model_config) if causal else 0
    states = of_states(model_config, tokens, precision, checkpointing)
    return replace(weights, activations=states + tokens * per_token)


def of_weights(
    parameters: int, trainable: int, precision: str, deepspeed: dict[str, Any] | None, ranks: int
) -> MemoryEstimate:
    """`estimate` of so many weights, without activations."""
    stage = zero_stage(deepspeed)
    weight, moment = (2, 12) if precision != "fp32" and deepspeed is not None else (4, 8)
    zero = (deepspeed or {}).get("zero_optimization", {})
    return MemoryEstimate(
        weights=0 if zero.get("offload_param") else parameters * weight / (ranks if stage == 3 else 1),
        gradients=trainable * weight / (ranks if stage >= 2 else 1),
        optimizer=0 if zero.get("offload_optimizer") else trainable * moment / (ranks if stage >= 1 else 1),
        activations=0.0,
    )


def bytes_in_bits(counts: tuple[int, int], model_config, bits: int) -> float:
    """Of (all, trained) weights whose frozen ones have so many bits, but for embeddings and head, which are in fp32."""
    everything, trained = counts
    kept = min(everything, trained + 2 * vocabulary_size(model_config) * width(model_config))
    return 4 * kept + (everything - kept) * bits / 8


def of_states(
    model_config, tokens: int, precision: str, checkpointing: bool = False, layers: int | None = None
) -> float:
    """Bytes of the activations of so many layers, without logits; None: of all."""
    layers = layer_count(model_config) if layers is None else layers
    per_token = width(model_config) * (2 if precision == "fp32" else 1)
    return tokens * per_token * ((2 * layers + 34) if checkpointing else 34 * layers)


def count_weights(model_config, settings: ModelConfig | None = None, causal: bool = False) -> tuple[int, int]:
    """(all, trainable) weights of a classifier or a causal model, counted without allocating any.

    `settings` tell which adapters it gets. Raises InputError where they name modules that there are not.
    """
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(model_config) if causal else new_classifier(model_config)
    model.tie_weights()  # which accelerate has torn: a tied head is no second matrix
    if settings is not None and settings.lora_rank:
        given = (0.0, settings.lora_target_modules, settings.modules_to_save)
        with torch.device("meta"):
            model = add_lora(model, settings.lora_rank, settings.lora_alpha, *given)
    trainable, everything = count_parameters(model)
    return everything, trainable


def device_memory_gb() -> float | None:
    """GiB of the GPU at hand, None without one."""
    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else None


def check_memory(
    demand: MemoryEstimate, memory_gb: float | None, stage: int, micro_batch: int, more: Sequence[str] = ()
) -> None:
    """Raises InputError where the estimate exceeds the stated memory (GiB a device); `more` are further ways out."""
    if memory_gb is None or demand.total <= memory_gb * GIB:
        return
    parts = ", ".join(f"{name} {getattr(demand, name) / GIB:.1f}" for name in MemoryEstimate.__dataclass_fields__)
    fixes = []
    if demand.activations > 0.3 * demand.total and micro_batch > 1:
        fixes.append("a smaller --micro_batch")
    fixes.append("--gradient_checkpointing")
    if stage < 3:
        fixes.append(f"--deepspeed configs/zero{stage + 1}.json" if stage else "--deepspeed configs/zero2.json")
    else:
        fixes.append("--deepspeed configs/zero3_offload.json")
    fixes += [*more, "more devices, or --lora_rank 16"]
    raise InputError(
        f"the run needs about {demand.total / GIB:.1f} GiB a device ({parts}); --memory_gb is {memory_gb:g}; "
        f"try {', '.join(fixes)}"
    )


def cached_numbers(model_config) -> int:
    """Keys and values of a token; 0 of a model without attention, whose states do not grow."""
    heads = head_count(model_config)
    if heads is None:
        return 0
    each = getattr(model_config, "head_dim", None) or width(model_config) // heads
    return 2 * layer_count(model_config) * each * (getattr(model_config, "num_key_value_heads", None) or heads)
