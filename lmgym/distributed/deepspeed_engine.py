"""One trained model under DeepSpeed, and access to weights that ZeRO-3 has sharded."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch

from lmgym.distributed.deepspeed_config import allows_partial_backward, fill_auto, import_deepspeed, zero_stage
from lmgym.distributed.ranks import rank, world_size
from lmgym.distributed.resharding import repair_universal_load
from lmgym.distributed.weights import accepting_checkpoints, without_base

# keys of an optimizer's parameter groups
LEARNING_RATE_SCALE = "learning_rate_scale"  # the group's factor on the engine's learning rate; default 1
FREEZABLE = "freezable"  # True if updates with `freeze` leave the group's weights unchanged; default False
Scales = tuple[float, float]
"""a group's factor on the learning rate: usually, and with `freeze`"""


def skipped_steps(model: torch.nn.Module) -> int:
    """The number of updates that DeepSpeed has skipped because a gradient was not finite; 0 without DeepSpeed."""
    return getattr(model, "skipped_steps", 0)


def gathered_parameters(parameters: Sequence[torch.Tensor], modifier_rank: int | None = None):
    """Context manager in which ZeRO-3's parameters are whole; a change on `modifier_rank` reaches all ranks."""
    deepspeed = import_deepspeed()
    return deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=modifier_rank)


def whole_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights of a module under DeepSpeed, unsharded and on the CPU, on rank 0; elsewhere empty. Collective.

    Weights trained in 16 bits come from their fp32 masters: rounding those to bf16 would undo small updates.
    """
    from deepspeed.utils import safe_get_full_fp32_param

    whole: dict[str, torch.Tensor] = {}
    for name, parameter in module.named_parameters():
        rounded = parameter.requires_grad and parameter.dtype != torch.float32
        master = safe_get_full_fp32_param(parameter) if rounded else None
        sharded = master is None and hasattr(parameter, "ds_id")
        with gathered_parameters([parameter] if sharded else []):
            if rank() == 0:
                whole[name] = (parameter if master is None else master).detach().cpu().clone()
    if rank() == 0:
        persistent = module.state_dict().keys() - whole.keys()
        whole |= {name: buffer.detach().cpu().clone() for name, buffer in module.named_buffers() if name in persistent}
    return whole


def end_prefetch(model: Any) -> None:
    """Drops the weights that ZeRO-3 has prefetched; call it after forwards without a backward. Collective.

    The prefetch is for that backward, and weights in flight cannot be gathered (deepspeed 0.19.8: "Cannot partition a
    param in flight").
    """
    stage = getattr(model, "zero_optimization_stage", None)  # of DeepSpeed's engine
    if stage is not None and stage() == 3:
        model.empty_partition_cache()


def pop_scales(optimizer: torch.optim.Optimizer) -> list[Scales]:
    """The scales of each group. Removes our two keys from the groups, so that no optimizer state contains them."""
    scales = []
    for group in optimizer.param_groups:
        scale, freezable = float(group.pop(LEARNING_RATE_SCALE, 1.0)), group.pop(FREEZABLE, False)
        scales.append((scale, 0.0 if freezable else scale))
    return scales


def set_rates(groups: Sequence[dict[str, Any]], scales: Sequence[Scales], learning_rate: float, freeze: bool) -> None:
    """Sets the learning rate of each group. At a rate of 0 weights do not decay either."""
    for group, scale in zip(groups, scales, strict=True):
        group["lr"] = learning_rate * scale[freeze]


@contextlib.contextmanager
def without_sharded_load() -> Iterator[None]:
    """Context manager in which new models are whole on each rank, even if the Trainer's ZeRO-3 shards at load."""
    from transformers.integrations import deepspeed as integration

    config = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = config


@final
class Engine:
    """A TrainingEngine (plain_engine.py) under DeepSpeed. Made by `Engine.prepare`; all methods are collective."""

    def __init__(self, engine, scales: Sequence[Scales] | None = None) -> None:
        self.engine, self.version = engine, 0
        self.scales = scales or [(1.0, 1.0)] * len(engine.optimizer.param_groups)

    @classmethod
    def prepare(cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> "Engine":
        """An engine of a model and its optimizer. Raises InputError if the config has an unresolved "auto"."""
        fill_auto(config, {}, "")
        scales = pop_scales(optimizer)
        engine, *_ = import_deepspeed().initialize(model=model, optimizer=optimizer, config=config)
        return cls(engine, scales)

    def __call__(self, *args, **kwargs):
        return self.engine(*args, **kwargs)

    @property
    def module(self) -> torch.nn.Module:
        return self.engine.module

    @property
    def allows_partial_backward(self) -> bool:
        return allows_partial_backward(self.engine.config)

    def set_learning_rate(self, learning_rate: float, freeze: bool = False) -> None:
        set_rates(self.engine.optimizer.param_groups, self.scales, learning_rate, freeze)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the loss's gradients, averaged over ranks: to sum over ranks, multiply the loss by their number."""
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> bool:
        skipped = self.engine.skipped_steps
        self.engine.step()
        stepped = self.engine.skipped_steps == skipped
        self.version += stepped
        return stepped

    def gather(self) -> dict[str, torch.Tensor]:
        return whole_weights(self.engine.module)

    def save(self, folder: str | Path) -> None:
        """Writes DeepSpeed's own checkpoint: weights, with adapters the trained ones; optimizer and counters."""
        with without_base(self.engine.module) as has_base:
            self.engine.save_checkpoint(str(folder), exclude_frozen_parameters=has_base)
        if rank() == 0:
            (Path(folder) / "zero_to_fp32.py").unlink(missing_ok=True)  # a program, not state

    def load(self, folder: str | Path) -> None:
        """Loads what `save` wrote. The shards are pickles: load only a checkpoint whose manifest verifies."""
        with accepting_checkpoints(self.engine.module):
            self.engine.load_checkpoint(str(folder))
        repair_universal_load(self.engine, Path(folder))


def engine_name(config: dict[str, Any] | None) -> str:
    """The engine for messages and comparison: ZeRO and its stage, DDP or plain."""
    return f"ZeRO {zero_stage(config)}" if config is not None else ("DDP" if world_size() > 1 else "plain")
