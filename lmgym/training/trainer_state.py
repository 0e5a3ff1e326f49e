"""Checkpoints of Hugging Face's Trainer under any of our engines, written and restored exactly.

    model.safetensors, optimizer.pt   plain and DDP: rank 0's, equal on all
    global_step*/                     DeepSpeed's shards of each rank
    scheduler.pt, trainer_state.json
    rank-00000.pt                     of each rank: random numbers, and sums since the last line of metrics

Of a model with adapters only the trained weights are written: the frozen ones are loaded from its folder, of which the
checkpoint's facts have a fingerprint.
Trainer's own saving is not used: it is not atomic, silently resumes without a rank's random state, and does not keep
the losses since the last line.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DeepSpeedSchedulerWrapper
from transformers import Trainer, TrainerState

from lmgym.distributed.deepspeed_engine import Engine
from lmgym.distributed.random_state import random_state, restore_random_state, set_seed
from lmgym.distributed.ranks import raise_on_all_ranks, rank
from lmgym.distributed.weights import load_weights, save_weights
from lmgym.runs.checkpoint_files import loading, ranks_of, read_rank_state, write_rank_state


def write_trainer(trainer: Trainer, folder: Path, sums: Mapping[str, Any]) -> None:
    """Writes this rank's part; `sums` are numbers and tensors of the caller's. On every rank."""
    assert trainer.model is not None
    assert trainer.optimizer is not None
    assert trainer.lr_scheduler is not None
    if trainer.is_deepspeed_enabled:
        Engine(trainer.model_wrapped).save(folder)
    elif rank() == 0:
        save_weights(trainer.model, folder / "model.safetensors")
        torch.save(trainer.optimizer.state_dict(), folder / "optimizer.pt")
    if rank() == 0:
        if not isinstance(trainer.lr_scheduler, DeepSpeedSchedulerWrapper):
            with warnings.catch_warnings():  # torch reminds to save the optimizer too
                warnings.simplefilter("ignore", UserWarning)
                torch.save(trainer.lr_scheduler.state_dict(), folder / "scheduler.pt")
        trainer._save_scaler(str(folder))
        trainer.state.save_to_json(str(folder / "trainer_state.json"))
    write_rank_state(folder, {"random": random_state(), "sums": dict(sums)})


def read_model(trainer: Trainer, folder: Path) -> None:
    """The weights of a plain or DDP checkpoint; before the model is wrapped."""
    assert trainer.model is not None
    with loading(folder):
        load_weights(trainer.model, folder / "model.safetensors")


def read_sums(folder: Path, ranks: int) -> dict[str, Any]:
    """The caller's sums of this rank; with another number of ranks, rank 0 has the sums of all. Collective."""
    if ranks == ranks_of(folder):
        return raise_on_all_ranks(lambda: _sums(folder, rank()))
    every = raise_on_all_ranks(lambda: [_sums(folder, i) for i in range(ranks_of(folder))])
    return every[0] | {"tallies": _added([sums["tallies"] for sums in every]) if rank() == 0 else {}}


def _sums(folder: Path, number: int) -> dict[str, Any]:
    found = read_rank_state(folder, number)
    with loading(folder):
        return found["sums"]


def refuse_unreadable_state(folder: Path) -> None:
    """Raises InputError if Trainer could not read its own state."""
    with loading(folder):
        TrainerState.load_from_json(str(folder / "trainer_state.json"))


def restore_random(folder: Path, ranks: int, seed: int, step: int) -> None:
    """Restores this rank's random state; with another number of ranks it is seeded by seed and step."""
    if ranks == ranks_of(folder):
        found = read_rank_state(folder, rank())
        with loading(folder):
            restore_random_state(found["random"])
    else:
        set_seed(seed + 1_000_003 * step + rank())


def _added(tallies: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([each[name] for each in tallies]).sum(0) for name in tallies[0]}
