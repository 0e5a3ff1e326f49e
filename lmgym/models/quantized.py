"""Base models in 4 or 8 bits under adapters, by bitsandbytes, which needs a GPU.

Never run: no GPU with bitsandbytes was available. Tests cover the checks, the arguments for transformers, and that
merging takes the base's weights from its folder rather than from 4 bits.

The rest of peft's prepare_model_for_kbit_training is done elsewhere: weights that are not quantised load in fp32, the
base under adapters is frozen, and checkpointing without reentrance needs no gradient of inputs.
"""

import importlib.util
from typing import Any

import torch

from lmgym.config import ModelConfig
from lmgym.distributed.deepspeed_config import zero_stage
from lmgym.errors import InputError


def bits_of(settings: ModelConfig) -> int:
    """Bits of the frozen weights: 4, 8, or 0 if they are not quantised."""
    return 4 if settings.load_in_4bit else 8 if settings.load_in_8bit else 0


def refuse_unfit_quantization(settings: ModelConfig, deepspeed: dict[str, Any] | None) -> None:
    """Raises InputError, before anything is loaded, if quantised weights are requested and not possible."""
    bits = bits_of(settings)
    if not bits:
        return
    flag = f"--load_in_{bits}bit"
    if settings.load_in_4bit and settings.load_in_8bit:
        raise InputError("found both --load_in_4bit and --load_in_8bit; needed: one of them")
    if not settings.lora_rank:
        raise InputError(f"{flag} with --lora_rank 0: quantised weights cannot be trained; needed: --lora_rank 16")
    if zero_stage(deepspeed) == 3:
        raise InputError(
            f"{flag} under ZeRO-3, which cannot shard quantised weights; needed: --deepspeed zero2 or none"
        )
    available = {
        "bitsandbytes (pip install bitsandbytes)": importlib.util.find_spec("bitsandbytes") is not None,
        "a GPU": torch.cuda.is_available(),
    }
    if missing := [name for name, here in available.items() if not here]:
        raise InputError(f"{flag} needs bitsandbytes and a GPU; missing here: {' and '.join(missing)}; or leave it out")


def loading_arguments(bits: int) -> dict[str, Any]:
    """Arguments of from_pretrained for weights in `bits`, except the head; none for 0."""
    if not bits:
        return {}
    from transformers import BitsAndBytesConfig

    nf4 = {
        "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.bfloat16,
    }  # fmt: skip
    settings = BitsAndBytesConfig(load_in_4bit=True, **nf4) if bits == 4 else BitsAndBytesConfig(load_in_8bit=True)
    return {"quantization_config": settings, "device_map": {"": torch.cuda.current_device()}}


def is_quantized(model) -> bool:
    """True for a transformers model with quantised weights."""
    return bool(getattr(model, "is_quantized", False))
