"""Training without dropout, for any family: the model stays in eval mode, but for what must know that it trains."""

import functools
from collections.abc import Callable
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
                _compute_in_eval_mode(module)
            else:
                for rate in [key for key, value in vars(module).items() if "drop" in key and isinstance(value, float)]:
                    setattr(module, rate, 0.0)


def _compute_in_eval_mode(layer: Any) -> None:
    """What the layer computes, and computes again in the backward, sees eval mode, whatever it has around it.

    Not by hooks of the layer: transformers 5.23 reads the mode after they have run, earlier versions before.
    """
    checkpointed = layer._gradient_checkpointing_func
    if getattr(checkpointed, "func", None) is not _checkpoint_in_eval_mode:
        # a partial: copies of the model get their own layer
        layer._gradient_checkpointing_func = functools.partial(_checkpoint_in_eval_mode, layer, checkpointed)


def _checkpoint_in_eval_mode(layer: Any, checkpointed: Callable, compute: Callable, *states: Any) -> Any:
    def computed(*states: Any) -> Any:
        before, layer.training = layer.training, False
        try:
            return compute(*states)
        finally:
            layer.training = before

    return checkpointed(computed, *states)
