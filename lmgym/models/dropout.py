"""Training without dropout, for any family: the model stays in eval mode, but for what must know that it trains."""

from typing import Any

from torch import nn
from transformers.modeling_layers import GradientCheckpointingLayer


def set_training(model: nn.Module, mode: bool) -> None:
    """Train mode without the model's own dropout: every forward gives the same numbers.

    Where layers are computed again in the backward, something asks for train mode before it does so: a layer has it
    until its own forward begins, other modules have it with their own rates at 0. Dropout in front of adapters, which a
    user asked for, is on.
    """
    nn.Module.train(model, False)
    model.training = mode  # callers set back what they find here
    if not mode:
        return
    for name, module in model.named_modules():
        if "lora_dropout" in name.split("."):
            module.training = True
        elif getattr(module, "gradient_checkpointing", False):
            module.training = True
            if isinstance(module, GradientCheckpointingLayer):
                _run_in_eval_mode(module)
            else:
                for rate in [key for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]:
                    setattr(module, rate, 0.0)


def _run_in_eval_mode(layer: nn.Module) -> None:
    """From here on the layer's own forward sees eval mode, whatever it has around it."""
    if hasattr(layer, "_mode_around"):
        return
    layer._mode_around = layer.training  # type: ignore[assignment]

    def begin(module: Any, *_: Any) -> None:
        module._mode_around, module.training = module.training, False

    def end(module: Any, *_: Any) -> None:
        module.training = module._mode_around

    layer.register_forward_pre_hook(begin)
    layer.register_forward_hook(end, always_call=True)
