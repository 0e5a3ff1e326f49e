"""An experiment that draws random numbers wherever one may: dropout in the model, and Python's, numpy's and torch's
generators in each data step. `LMGYM_TEST_*` in its environment plant what a test asks for.
"""

import contextlib
import os
import random
import time
from pathlib import Path

import numpy as np
import torch

from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from reward_models.config import RewardModelConfig

CONFIG = RewardModelConfig(name="noisy")
PLANT = {
    name.removeprefix("LMGYM_TEST_"): value for name, value in os.environ.items() if name.startswith("LMGYM_TEST_")
}
MINE = PLANT.get("RANK", os.environ.get("RANK", "0")) == os.environ.get("RANK", "0")


def fill(disk: Path) -> None:
    """Leaves no byte free."""
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


class Noisy:
    """Pairs whose margins are noise, and what was planted at update AT (0 the first) on rank RANK, or on all."""

    def __init__(self, objective, model) -> None:
        self.objective, self.model, self.calls = objective, model, 0

    def collate(self, items):
        batch = self.objective.collate(items)
        noise = random.random() + np.random.random() + torch.rand(len(batch["margins"]))
        if "QUIET" not in PLANT:
            batch["margins"] = batch["margins"] + 0.1 * noise
        time.sleep(float(PLANT.get("SLEEP", 0)))
        return batch

    def loss(self, scores, batch):
        planted = PLANT.get("FAULT") if self.calls == int(PLANT.get("AT", 0)) and MINE else None
        self.calls += 1
        total, count = self.objective.loss(scores, batch)
        if planted == "loss":
            total = total * torch.inf
        if planted == "gradient":  # the square root's slope at 0 is infinite, and 0 times it is none
            total = total + ((scores * 0.0).sum()).abs().sqrt()
        if planted == "full":
            fill(Path(PLANT["DISK"]))
        if planted == "weight":  # an embedding; frozen, or DeepSpeed would copy its fp32 master there
            weight = self.model.classifier.get_input_embeddings().weight
            with torch.no_grad():
                getattr(weight, "ds_tensor", weight).view(-1)[-1] = torch.nan
        if planted == "stall":
            time.sleep(3600)
        if planted == "memory":
            raise torch.OutOfMemoryError("planted")
        return total, count

    def tallies(self, scores, batch):
        return self.objective.tallies(scores, batch)


class NoisyTask:
    """Pairs through `Noisy`."""

    def __init__(self, task) -> None:
        self.task = task

    def __getattr__(self, name: str):
        return getattr(self.task, name)

    def objective(self, config, model, pad_id):
        return Noisy(self.task.objective(config, model, pad_id), model)


def save_slowly(seconds: float) -> None:
    """Each rank rests within each save, before its last file."""
    from lmgym.training import trainer_state

    write = trainer_state.write_rank_state

    def wait_and_write(folder: Path, content) -> None:
        time.sleep(seconds)
        write(folder, content)

    trainer_state.write_rank_state = wait_and_write


if __name__ == "__main__":
    config = override(CONFIG)
    if "SAVE_SECONDS" in PLANT:
        save_slowly(float(PLANT["SAVE_SECONDS"]))
    from reward_models.pairwise import PairTask
    from reward_models.train import train

    launch(lambda: train(config, NoisyTask(PairTask(outputs=config.heads))))
