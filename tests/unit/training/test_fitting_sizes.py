"""Sizes that the user did not set follow from the data; those that the user set stay."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmgym.config import OptimizerConfig, UpTo
from lmgym.data.prompts import read_prompts
from lmgym.environments.scored_chat import ScoredChat
from lmgym.runs.flags import override
from lmgym.statistics import FEW
from lmgym.training.plan import fit_batch, fit_micro_batch
from lmgym.training.reporting import time_left
from ppo.check import count_iterations, fit_rollouts
from ppo.config import PPOConfig, RolloutConfig
from ppo.experiments.hh_harmless import CONFIG as AGAINST_SCORERS
from ppo.task_setups import TaskSetup
from reward_models.experiments.hh_pairwise import CONFIG as PAIRS
from sft.config import SftConfig


def prompts(folder: Path, number: int) -> Path:
    path = folder / f"{number}.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {i}"}) + "\n" for i in range(number)))
    return path


@pytest.mark.parametrize(("rows", "given", "held_out"), [(100, [], 10), (400, [], 40), (9, [], 1), (6000, [], 512)])
def test_at_most_a_tenth_is_evaluated_on(rows: int, given: list[str], held_out: int, tmp_path: Path) -> None:
    config = override(AGAINST_SCORERS, ["--prompts", str(prompts(tmp_path, rows)), *given])
    found = read_prompts(config.rollout, 0)
    assert (len(found.evaluation), len(found.train)) == (held_out, rows - held_out)
    warned = [note for note in found.reading if "too few for an interval" in note]
    assert bool(warned) == (held_out < FEW)
    assert all("set --eval_size 30" in note for note in warned) or rows <= 2 * FEW


def test_what_the_user_sets_is_evaluated_on(tmp_path: Path) -> None:
    path = str(prompts(tmp_path, 100))
    config = override(AGAINST_SCORERS, ["--prompts", path, "--eval_size", "40"])
    assert len(read_prompts(config.rollout, 0).evaluation) == 40
    assert len(read_prompts(RolloutConfig(path), 0).evaluation) == 10, "PPO's own 64"
    assert len(read_prompts(RolloutConfig(path, eval_size=64), 0).evaluation) == 64


@pytest.mark.parametrize(("rows", "batch"), [(54, 8), (300, 16), (600, 32), (1024, 64), (100_000, 64)])
def test_few_rows_make_small_batches(rows: int, batch: int) -> None:
    assert fit_batch(PAIRS, None, rows).optimizer.global_batch == batch
    given = override(PAIRS, ["--global_batch", "64"])
    assert fit_batch(given, None, rows) == given


@pytest.mark.parametrize(
    ("words", "ranks", "micro"),
    [
        ([], 1, 8),
        (["--global_batch", "4"], 1, 4),
        (["--global_batch", "36"], 1, 6),
        (["--global_batch", "12"], 2, 6),
        (["--global_batch", "8"], 4, 2),
        (["--global_batch", "4", "--micro_batch", "8"], 1, 8),  # which is refused
        (["--global_batch", "3"], 2, 8),  # which is refused
    ],
)
def test_micro_batches_divide_the_batch_that_a_user_sets(words: list[str], ranks: int, micro: int, monkeypatch) -> None:
    monkeypatch.setattr("lmgym.training.plan.world_size", lambda: ranks)
    assert fit_micro_batch(override(PAIRS, words)).optimizer.micro_batch == micro


def test_a_batch_is_whole_micro_batches_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def fitted(config: Any, deepspeed: dict | None = None) -> int:
        return fit_batch(config, deepspeed, 50).optimizer.global_batch

    assert fitted(override(PAIRS, ["--micro_batch", "32"])) == 32
    assert fitted(SftConfig("x", optimizer=OptimizerConfig(global_batch=UpTo(48), micro_batch=4))) == 12
    assert fitted(PAIRS, {"train_batch_size": 64}) == 64
    assert fitted(PAIRS, {"train_batch_size": "auto"}) == 8
    monkeypatch.setattr("lmgym.training.plan.world_size", lambda: 4)
    assert fitted(PAIRS) == 32


def fitted(config: PPOConfig, tasks: int) -> tuple[int, int]:
    """(episodes of an iteration, iterations)."""
    config = fit_rollouts(config, tasks)
    return config.rollout.num_rollouts, count_iterations(config, TaskSetup([{}] * tasks, [], ScoredChat, None, ""))


def test_iterations_follow_from_the_prompts() -> None:
    assert fitted(AGAINST_SCORERS, 100_000) == (512, 50), "as the experiment says"
    assert fitted(AGAINST_SCORERS, 90) == (64, 15), "ten passes"
    assert fitted(AGAINST_SCORERS, 10) == (64, 10), "the fewest"
    grouped = override(AGAINST_SCORERS, ["--method", "grpo", "--num_generations", "8"])
    assert fitted(grouped, 20)[0] == 128, "of 16 prompts"
    assert fitted(override(AGAINST_SCORERS, ["--num_rollouts", "512", "--max_updates", "1600"]), 90) == (512, 50)


def test_the_time_that_is_left_is_said_with_what_makes_it_shorter() -> None:
    assert time_left(9, 1.0, "updates", 0.5, "WAYS") == []
    assert time_left(100, 0.5, "updates", 20.0, "WAYS") == [
        "time: about 70 s more, 100 updates of 0.5 s and 20 s of evaluations, measured here"
    ]
    (line,) = time_left(100, 60.0, "iterations", 600.0, "WAYS", updates_per_step=4)
    assert line.startswith("time: about 1.8 hours more, 100 iterations of 60 s and 600 s of evaluations")
    assert line.endswith("for about an hour: --max_updates 200; or WAYS")


def test_a_number_of_the_experiment_is_recorded_as_any_other() -> None:
    config = replace(PAIRS.optimizer, global_batch=UpTo(64))
    assert json.dumps({"batch": config.global_batch}) == '{"batch": 64}'
    assert f"{config.global_batch}, {config.global_batch:g}, {config.global_batch!r}" == "64, 64, 64"


def test_a_forward_holds_the_tokens_that_are_set_or_one_row() -> None:
    rows, tokens = OptimizerConfig(micro_batch=4), OptimizerConfig(micro_batch=4, tokens_per_micro_batch=1000)
    assert (rows.batch_tokens(300), rows.smallest_micro_batch) == (1200, 4)
    assert (tokens.batch_tokens(300), tokens.batch_tokens(1500), tokens.smallest_micro_batch) == (1000, 1500, 1)
    few = override(PAIRS, ["--tokens_per_micro_batch", "9"])
    assert fit_batch(few, None, 50).optimizer.global_batch == 2, "batches need not be whole micro-batches"
