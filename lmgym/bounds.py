"""What a single setting may be: refused with what is needed, for all stages before anything is loaded.

Every number is finite and has an upper limit, where values stop making sense; the few that may be inf say so in words.
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from lmgym.config import ModelConfig, RowSettings, StageConfig
from lmgym.errors import InputError, shown

MOST_STEPS = 10**9
"""updates, iterations and rows"""
MOST_TOGETHER = 1 << 20
"""rows of a batch, replies of an iteration, and tokens of a reply"""
MOST_TOKENS = 1 << 24
"""of a text, and words of a vocabulary"""
MOST_SCORE = 1e6
"""absolute value of a reward, and of what is added to it or multiplied with it"""
MOST_SECONDS = 30 * 24 * 3600
MOST_GB = 1e6
MOST_TEMPERATURE = 100
MOST_SEED = 2**32 - 1
NAME = re.compile(r"(?=.*[^.])[A-Za-z0-9_.-]{1,200}")


class Bound(NamedTuple):
    """A setting that is bounded by itself. Write `fits` so that NaN, inf and what is absurdly large do not fit."""

    name: str
    value: Any
    fits: bool
    needed: str


def refuse_out_of_bounds(bounds: Iterable[Bound]) -> None:
    """Raises InputError for the first setting that does not fit."""
    for name, value, fits, needed in bounds:
        if not fits:
            raise InputError(f"{name}={shown(value)}; needed: {needed}")


def seed_bound(name: str, seed: int) -> Bound:
    """Of what numpy and torch take as a seed."""
    return Bound(name, seed, 0 <= seed <= MOST_SEED, f"0 to {MOST_SEED}")


def count_bound(name: str, count: int | None, most: int, needed: str = "1 or more") -> Bound:
    """Of a number of things; None where the setting may be left out, which `needed` tells."""
    return Bound(name, count, count is None or 1 <= count <= most, f"{needed}; at most {most:,}")


def bounds_of_stages(config: StageConfig, model: ModelConfig) -> list[Bound]:
    """Of the settings that all stages share."""
    named = NAME.fullmatch(config.name) is not None
    return [
        Bound("name", config.name, named, "1 to 200 letters, digits and _ . -, not dots alone: it names a folder"),
        *_of_the_model(model),
        *_of_the_optimizer(config),
        *_of_the_run(config),
    ]


def bounds_of_rows(rows: RowSettings) -> list[Bound]:
    """Of where rows come from and how they are split and cut."""
    return [
        held_out_bound(rows.eval_size, "rows"),
        count_bound("train_size", rows.train_size, MOST_STEPS, "1 or more, or none for all"),
        count_bound("max_rows", rows.max_rows, MOST_STEPS, "1 or more, or none for all"),
        count_bound("max_length", rows.max_length, MOST_TOKENS),
    ]


def held_out_bound(size: float, noun: str) -> Bound:
    """Of `eval_size`."""
    fits = 0 <= size < 1 or (1 <= size <= MOST_STEPS and size == int(size))
    return Bound("eval_size", size, fits, f"a share below 1, or a whole number of {noun}; at most {MOST_STEPS:,}")


def _of_the_model(m: ModelConfig) -> list[Bound]:
    rank, alpha, targets, saved = m.lora_rank, m.lora_alpha, m.lora_target_modules, m.modules_to_save
    return [
        Bound("lora_rank", rank, 0 <= rank <= 65_536, "1 or more, or 0 to train every weight; at most 65,536"),
        Bound("lora_alpha", alpha, 0 < alpha <= 10**6, "above 0; twice lora_rank is usual; at most 1,000,000"),
        Bound("lora_dropout", m.lora_dropout, 0 <= m.lora_dropout < 1, "0 or more, below 1"),
        Bound(
            "lora_target_modules",
            targets,
            bool(targets) and (rank > 0 or targets == "all-linear"),
            "all-linear, names, or a regular expression, with --lora_rank above 0: it says where adapters stand",
        ),
        Bound("modules_to_save", saved, not saved or rank > 0, "none, or --lora_rank above 0: without it all trains"),
    ]


def _of_the_optimizer(config: StageConfig) -> list[Bound]:
    o = config.optimizer
    return [
        Bound("learning_rate", o.learning_rate, 0 <= o.learning_rate <= 1, "0 or more; at most 1"),
        Bound("weight_decay", o.weight_decay, 0 <= o.weight_decay <= 100, "0 or more; at most 100"),
        Bound("adam_beta2", o.adam_beta2, 0 <= o.adam_beta2 < 1, "0 or more, below 1; .999 is usual"),
        Bound(
            "warmup",
            o.warmup,
            0 <= o.warmup <= MOST_STEPS,
            f"a share of all updates below 1, or a number of updates; at most {MOST_STEPS:,}",
        ),
        Bound(
            "epochs", o.epochs, 0 < o.epochs <= 10_000, "above 0; a part of the rows is a share below 1; at most 10,000"
        ),
        Bound(
            "max_updates",
            o.max_updates,
            o.max_updates == -1 or 1 <= o.max_updates <= MOST_STEPS,
            "1 or more, or -1 to stop after the epochs; --dry_run trains nothing; at most 1,000,000,000",
        ),
        count_bound("global_batch", o.global_batch, MOST_TOGETHER),
        count_bound("micro_batch", o.micro_batch, MOST_TOGETHER),
        Bound(
            "max_grad_norm",
            o.max_grad_norm,
            0 < o.max_grad_norm <= 1e9,
            "above 0; 1e9 leaves gradients as they are; at most 1,000,000,000",
        ),
        seed_bound("seed", o.seed),
        seed_bound("split_seed", o.split_seed),
    ]


def _of_the_run(config: StageConfig) -> list[Bound]:
    r, most = config.run, f"; at most {MOST_STEPS:,}"
    return [
        count_bound("log_updates", r.log_updates, MOST_STEPS),
        Bound(
            "eval_updates",
            r.eval_updates,
            0 <= r.eval_updates <= MOST_STEPS,
            f"1 or more, or 0 for five evaluations in a run{most}",
        ),
        Bound("data_workers", r.data_workers, 0 <= r.data_workers <= 1024, "0 or more; at most 1,024"),
        Bound(
            "save_updates",
            r.save_updates,
            -1 <= r.save_updates <= MOST_STEPS,
            f"1 or more, 0 for five checkpoints in a run, or -1 for none but when asked to leave{most}",
        ),
        count_bound("save_total_limit", r.save_total_limit, 10_000, "1 or more; --save_updates -1 saves none"),
        Bound(
            "stall_timeout",
            r.stall_timeout,
            0 <= r.stall_timeout <= MOST_SECONDS,
            f"seconds, or 0 to wait for ever; at most {MOST_SECONDS:,}",
        ),
        Bound(
            "memory_gb",
            r.memory_gb,
            r.memory_gb is None or 0 < r.memory_gb <= MOST_GB,
            f"above 0; leave it out for the GPU's own; at most {MOST_GB:,.0f}",
        ),
    ]
