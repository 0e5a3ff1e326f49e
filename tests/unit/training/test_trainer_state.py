"""A rank's part of a checkpoint: whose it is tells the manifest, not which files happen to be there."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lmgym.distributed.random_state import random_state
from lmgym.errors import InputError
from lmgym.training.trainer import ObjectiveTrainer
from lmgym.training.trainer_state import read_sums, restore_random
from ppo.config import PPOConfig
from ppo.state import LoopState, read_state


def checkpoint(folder: Path, ranks: int, files: int) -> Path:
    """The checkpoint of so many ranks, of which so many files are left."""
    (folder / "manifest.json").write_text(json.dumps({"facts": {"ranks": ranks}}))
    for number in range(files):
        tallies = {"loss": torch.tensor(number + 1.0)}
        content = {"random": random_state(), "sums": {"tallies": tallies, "items": 7}}
        torch.save(content, folder / f"rank-{number:05d}.pt")
    return folder


def test_a_rank_reads_its_own_sums(tmp_path: Path) -> None:
    assert read_sums(checkpoint(tmp_path, ranks=1, files=1), 1)["tallies"]["loss"] == 1


def test_of_another_number_of_ranks_the_first_has_the_sums_of_all(tmp_path: Path) -> None:
    found = read_sums(checkpoint(tmp_path, ranks=3, files=3), 1)
    assert (found["tallies"]["loss"], found["items"]) == (6, 7)


@pytest.mark.parametrize(("ranks", "files"), [(1, 0), (2, 1), (3, 0)])
def test_what_a_rank_wrote_and_is_gone_is_an_error(ranks: int, files: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"rank-{files:05d}.pt is missing"):
        read_sums(checkpoint(tmp_path, ranks, files), 1)


def test_random_numbers_that_are_gone_are_not_drawn_anew(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, ranks=1, files=0)
    with pytest.raises(InputError, match=r"rank-00000.pt is missing"):
        restore_random(folder, 1, seed=0, step=4)
    with pytest.raises(InputError, match=r"rank-00000.pt is missing"):
        read_state(folder, None, LoopState.fresh(PPOConfig("x").algorithm.init_kl_coef, PPOConfig("x").method), seed=0)  # type: ignore[arg-type]


def test_random_numbers_go_on_where_the_checkpoint_was_written(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), np.random.random(), torch.rand(1).item()]

    folder = checkpoint(tmp_path, ranks=1, files=1)
    wanted = [draw(), draw()]
    trainer = SimpleNamespace(args=SimpleNamespace(seed=3), state=SimpleNamespace(global_step=4))
    ObjectiveTrainer._load_rng_state(trainer, str(folder))  # type: ignore[arg-type]
    assert [draw(), draw()] == wanted
    ObjectiveTrainer._load_rng_state(trainer, None)  # type: ignore[arg-type]
    assert draw() not in wanted


def test_with_another_number_of_ranks_random_numbers_depend_on_seed_and_step(tmp_path: Path) -> None:
    folder, found = checkpoint(tmp_path, ranks=2, files=2), []
    for seed, step in ((0, 4), (0, 4), (0, 5), (1, 4)):
        restore_random(folder, 1, seed, step)
        found.append(torch.rand(1).item())
    assert found[0] == found[1]
    assert len(set(found)) == 3
