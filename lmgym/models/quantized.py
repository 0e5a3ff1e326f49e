"""Base models in 4 or 8 bits under adapters, by bitsandbytes, which needs a GPU.

Never run: no GPU with bitsandbytes was available. Tests cover the checks, the arguments for transformers, and that
merging takes the base's weights from its folder rather than from 4 bits.

The rest of peft's prepare_model_for_kbit_training is done elsewhere: weights that are not quantised load in fp32, the
base under adapters is frozen, and checkpointing without reentrance needs no gradient of inputs.
"""

from typing import Any

import torch


def loading_arguments(bits: int) -> dict[str, Any]:
    """Arguments of from_pretrained for weights in `bits`, except the head; none for 0."""
    if not bits:
        return {}
    from transformers import BitsAndBytesConfig

    nf4 = {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.bfloat16,
    }
    settings = BitsAndBytesConfig(load_in_4bit=True, **nf4) if bits == 4 else BitsAndBytesConfig(load_in_8bit=True)
    return {"quantization_config": settings, "device_map": {"": torch.cuda.current_device()}}


def is_quantized(model) -> bool:
    """True for a transformers model with quantised weights."""
    return bool(getattr(model, "is_quantized", False))
