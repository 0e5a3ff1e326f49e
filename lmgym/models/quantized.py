"""Base models in 4 or 8 bits under adapters, by bitsandbytes.

Run on a CPU, by its backend there: training, resuming, merging and sampling, on tiny models and SmolLM2-135M. Never run
on a GPU. Merging takes the base's weights from its folder rather than from 4 bits.

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
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return {"quantization_config": settings, "device_map": {"": device}}


def is_quantized(model) -> bool:
    """True for a transformers model with quantised weights."""
    return bool(getattr(model, "is_quantized", False))


def keep_exact(model) -> None:
    """On a CPU, keep bitsandbytes from repacking 4-bit weights at their first use without gradients.

    Its packing rounds the blocks' scales, so that a resumed run would not be the one that was stopped.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
