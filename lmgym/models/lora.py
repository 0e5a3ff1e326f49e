"""Low-rank adapters."""

from transformers.pytorch_utils import Conv1D

from lmgym.models.heads import head_modules


def add_lora(model, rank: int, alpha: int, dropout: float):
    """Low-rank adapters on every linear layer of the trunk.

    A classifier's head, and a pooler, train in full and are saved too; a causal model's head stays as it is.
    """
    from peft import LoraConfig, get_peft_model

    causal = model.get_output_embeddings() is not None
    settings = LoraConfig(
        task_type="CAUSAL_LM" if causal else "SEQ_CLS",
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules="all-linear",
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),  # GPT-2's linear layers
        exclude_modules=None if causal else r".*pooler\..*",
        modules_to_save=None if causal else head_modules(model),
    )
    # ZeRO-3 takes trained weights of one type only: adapters in the trunk's own, their fp32 masters are DeepSpeed's
    return get_peft_model(model, settings, autocast_adapter_dtype=False)
