"""One trained model under raw DeepSpeed, and its weights where ZeRO-3 has sharded them."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch

from lmgym.distributed.deepspeed_config import (
    fill_auto,
    import_deepspeed,
    takes_parts,
    zero_stage,
)
from lmgym.distributed.ranks import rank, world_size
from lmgym.distributed.resharding import mend_sharded_load

Scales = tuple[float, float]
"""how many times the rate of `set_rate` that of an optimizer's group is: as a rule, and while some rest"""

RATE_SCALE = "rate_scale"  # of an optimizer's group: how many times the rate of `set_rate` its own is; else 1
MAY_REST = "may_rest"  # of an optimizer's group: its weights stay as they are in an update for which some rest


def skipped_steps(model: torch.nn.Module) -> int:
    """Updates that DeepSpeed has skipped for a gradient that is not finite; 0 where it does not run."""
    return getattr(model, "skipped_steps", 0)


def gathered_parameters(parameters: Sequence[torch.Tensor], modifier_rank: int | None = None):
    """ZeRO-3's parameters made whole for the length of a `with`; a change on `modifier_rank` reaches all."""
    deepspeed = import_deepspeed()
    return deepspeed.zero.GatheredParameters(list(parameters), modifier_rank=modifier_rank)


def own_part(parameter: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What this rank keeps of a parameter, flat, and where of the whole it begins: all of it but under ZeRO-3.

    No collective, unlike `gathered_parameters`, which must not meet a parameter that a forward has asked for.
    """
    shard = getattr(parameter, "ds_tensor", None)
    if shard is None:
        return parameter.detach().flatten(), 0
    begin = min(rank() * shard.ds_numel, parameter.ds_numel)  # type: ignore[attr-defined]
    return shard.detach().flatten()[: parameter.ds_numel - begin], begin  # type: ignore[attr-defined]


def whole_weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All weights of a module under DeepSpeed, whole and on the CPU, on rank 0; elsewhere an empty dict. Collective.

    Where training in 16 bits keeps fp32 masters, these are taken: rounding them to bf16 would undo small updates.
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
        kept = module.state_dict().keys() - whole.keys()
        whole |= {name: buffer.detach().cpu().clone() for name, buffer in module.named_buffers() if name in kept}
    return whole


def end_fetches(model: Any) -> None:
    """Ends what ZeRO-3 fetches ahead, to be called after forwards that no backward follows. Collective.

    The next weights are on their way for that backward, and whole weights cannot be gathered meanwhile
    (deepspeed 0.19.8: "Cannot partition a param in flight").
    """
    stage = getattr(model, "zero_optimization_stage", None)  # of DeepSpeed's engine
    if stage is not None and stage() == 3:
        model.empty_partition_cache()


def take_scales(optimizer: torch.optim.Optimizer) -> list[Scales]:
    """RATE_SCALE of each group, and what it is while some rest: of those that MAY_REST 0. Both marks go no further:
    what keeps an optimizer's state need not know of them.
    """
    scales = [float(group.pop(RATE_SCALE, 1.0)) for group in optimizer.param_groups]
    rests = [bool(group.pop(MAY_REST, False)) for group in optimizer.param_groups]
    return [(scale, 0.0 if still else scale) for scale, still in zip(scales, rests, strict=True)]


def set_rates(groups: Sequence[dict[str, Any]], scales: Sequence[Scales], learning_rate: float, resting: bool) -> None:
    """The rate of each of an optimizer's groups. At a rate of 0 weights do not decay either."""
    for group, scale in zip(groups, scales, strict=True):
        group["lr"] = learning_rate * scale[resting]


@contextlib.contextmanager
def without_sharded_load() -> Iterator[None]:
    """Models made within are whole and this rank's own, also where the Trainer's ZeRO-3 shards at load."""
    from transformers.integrations import deepspeed as integration

    kept = integration._hf_deepspeed_config_weak_ref
    integration.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        integration._hf_deepspeed_config_weak_ref = kept


@final
class Engine:
    """One trained model under raw DeepSpeed. Made by `Engine.prepare`; all methods are collective."""

    def __init__(self, engine, scales: Sequence[Scales] | None = None) -> None:
        self.engine, self.version = engine, 0
        self.scales = scales or [(1.0, 1.0)] * len(engine.optimizer.param_groups)

    @classmethod
    def prepare(cls, model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any]) -> "Engine":
        """A model and its optimizer under a resolved config. Raises InputError where an "auto" is left."""
        fill_auto(config, {}, "")
        scales = take_scales(optimizer)
        engine, *_ = import_deepspeed().initialize(model=model, optimizer=optimizer, config=config)
        return cls(engine, scales)

    def __call__(self, *args, **kwargs):
        """The wrapped module's forward."""
        return self.engine(*args, **kwargs)

    @property
    def module(self) -> torch.nn.Module:
        """The model itself."""
        return self.engine.module

    @property
    def takes_parts(self) -> bool:
        """Whether each backward of an update may reach a part of the weights alone."""
        return takes_parts(self.engine.config)

    def set_rate(self, learning_rate: float, resting: bool = False) -> None:
        """Of the updates to come; with `resting` what may rest stays as it is."""
        set_rates(self.engine.optimizer.param_groups, self.scales, learning_rate, resting)

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        """Adds the loss's gradients; `last` ends the accumulation of an update. The loss is scaled by the caller.

        Gradients are averaged over ranks, so a share of a sum over all of them is scaled by their number.
        """
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss, scale_wrt_gas=False)

    def step(self) -> bool:
        """Updates the weights after a last backward; False where DeepSpeed skipped it for a gradient not finite."""
        skipped = self.engine.skipped_steps
        self.engine.step()
        stepped = self.engine.skipped_steps == skipped
        self.version += stepped
        return stepped

    def gather(self) -> dict[str, torch.Tensor]:
        """`whole_weights` of the trained module."""
        return whole_weights(self.engine.module)

    def save(self, folder: str | Path) -> None:
        """DeepSpeed's own checkpoint: weights, optimizer and counters of every rank."""
        self.engine.save_checkpoint(str(folder))
        if rank() == 0:
            (Path(folder) / "zero_to_fp32.py").unlink(missing_ok=True)  # a program, and nobody's state

    def load(self, folder: str | Path) -> None:
        """What `save` wrote. DeepSpeed's shards are pickles: only of a checkpoint whose manifest verifies."""
        self.engine.load_checkpoint(str(folder))
        mend_sharded_load(self.engine, Path(folder))


def engine_name(config: dict[str, Any] | None) -> str:
    """How ranks work together, for people and for comparison: ZeRO and its level, DDP or plain."""
    return f"ZeRO {zero_stage(config)}" if config is not None else ("DDP" if world_size() > 1 else "plain")
