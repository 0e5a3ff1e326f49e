"""What a single setting may be: refused with what is needed, for all stages before anything is loaded."""

from collections.abc import Iterable
from math import inf
from typing import Any, NamedTuple

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.errors import InputError


class Bound(NamedTuple):
    """A setting that is bounded by itself. Write `fits` so that NaN does not fit."""

    name: str
    value: Any
    fits: bool
    needed: str


def refuse_out_of_bounds(bounds: Iterable[Bound]) -> None:
    """Raises InputError for the first setting that does not fit."""
    for name, value, fits, needed in bounds:
        if not fits:
            raise InputError(f"{name}={value!r}; needed: {needed}")


def bounds_of_stages(model: ModelConfig, optimizer: OptimizerConfig, run: RunConfig) -> list[Bound]:
    """Of the settings that all stages share."""
    m, o, r = model, optimizer, run
    return [
        Bound("lora_rank", m.lora_rank, m.lora_rank >= 0, "1 or more, or 0 to train every weight"),
        Bound("lora_alpha", m.lora_alpha, m.lora_alpha > 0, "above 0; twice lora_rank is usual"),
        Bound("lora_dropout", m.lora_dropout, 0 <= m.lora_dropout < 1, "0 or more, below 1"),
        Bound("learning_rate", o.learning_rate, 0 <= o.learning_rate < inf, "above 0"),
        Bound("weight_decay", o.weight_decay, 0 <= o.weight_decay < inf, "0 or more"),
        Bound("adam_beta2", o.adam_beta2, 0 <= o.adam_beta2 < 1, "0 or more, below 1; .999 is usual"),
        Bound("warmup", o.warmup, 0 <= o.warmup < inf, "a share of all updates below 1, or a number of updates"),
        Bound("epochs", o.epochs, 0 < o.epochs < inf, "above 0; a part of the rows is a share below 1"),
        Bound(
            "max_updates",
            o.max_updates,
            o.max_updates == -1 or o.max_updates >= 1,
            "1 or more, or -1 to stop after the epochs; --dry_run trains nothing",
        ),
        Bound("max_grad_norm", o.max_grad_norm, o.max_grad_norm > 0, "above 0; 1e9 leaves gradients as they are"),
        Bound("seed", o.seed, 0 <= o.seed < 2**32, f"0 to {2**32 - 1}"),
        Bound("split_seed", o.split_seed, 0 <= o.split_seed < 2**32, f"0 to {2**32 - 1}"),
        Bound("log_updates", r.log_updates, r.log_updates >= 1, "1 or more"),
        Bound("eval_updates", r.eval_updates, r.eval_updates >= 0, "1 or more, or 0 for five evaluations in a run"),
        Bound("data_workers", r.data_workers, r.data_workers >= 0, "0 or more"),
        Bound(
            "save_updates",
            r.save_updates,
            r.save_updates >= -1,
            "1 or more, 0 for five checkpoints in a run, or -1 for none but when asked to leave",
        ),
        Bound(
            "save_total_limit", r.save_total_limit, r.save_total_limit >= 1, "1 or more; --save_updates -1 saves none"
        ),
        Bound("stall_timeout", r.stall_timeout, r.stall_timeout >= 0, "seconds, or 0 to wait for ever"),
        Bound(
            "memory_gb", r.memory_gb, r.memory_gb is None or r.memory_gb > 0, "above 0; leave it out for the GPU's own"
        ),
    ]
