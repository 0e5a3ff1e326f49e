"""PPO that is killed, signalled, starved of rewards or given nonsense: it goes on exactly, or ends with its reason.

Rewards draw random numbers and the KL coefficient adapts, so that a state that were lost would show.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faulting import ENGINES, ROOT, begin_and_wait, digest, lines_once, newest, outcome, steps, workers
from launching import PRETENDED, finish, flags, launch, read_lines, run, words

SCRIPT = ROOT / "tests/experiments/ppo_script.py"
AN_ITERATION, UPDATES = 4, 24
TRAIN = {
    "max_updates": UPDATES, "learning_rate": 1e-3, "save_updates": AN_ITERATION, "eval_updates": 8, "target": 0.05,
    "horizon": 100, "init_kl_coef": 0.1, "save_total_limit": 9, "tracking": "none",
}  # fmt: skip
NOISY = {"LMGYM_TEST_NOISY": "1"}
Words = Callable[..., list]
TORCHRUN = {"ddp": 1}  # which turns every code into 1


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def asked(talkative_models: dict[str, Path], chats_file: Path) -> Words:
    """The command of a user: `asked(engine, output, **changes)`."""

    def make(engine: str, output: Path, *more: object, ranks: int = 2, **changes) -> list:
        kind, config = ENGINES[engine]
        values = {"model": talkative_models["gpt2"], "prompts": chats_file, "output": output, **TRAIN, **changes}
        if config:
            values.setdefault("deepspeed", ROOT / "configs" / config)
        return launch(kind, *flags(**values), *more, script=SCRIPT, ranks=ranks)

    return make


def left(folder: Path) -> dict[str, Any]:
    """All that a run computed: weights, the loop's state at each checkpoint, metrics and replies, but for times."""
    timed = ("time", "run/", "rollout/tokens_per_second")
    lines = [
        {k: v for k, v in line.items() if not k.startswith(timed)} for line in lines_once(folder / "metrics.jsonl")
    ]
    states = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("checkpoints/step-*/loop.json")}
    # a kill within a write leaves a hidden file beside the one that the next attempt writes
    samples = {path.name: read_lines(path) for path in sorted((folder / "samples").glob("[!.]*"))}
    return {"weights": digest(folder), "metrics": json.dumps(lines), "states": states, "samples": samples}


def assert_as_uninterrupted(found: Path, wanted: Path) -> None:
    a, b = left(found), left(wanted)
    assert a["states"].keys() == b["states"].keys()
    assert a == b
    coefficients = [state["kl"]["value"] for state in b["states"].values()]
    assert len(set(coefficients)) == len(coefficients) == UPDATES // AN_ITERATION, "the coefficient adapts"
    assert outcome(found) == ("finished", 0)


def kill(
    command: list, folder: Path, step: int, rank: int, delay: float, script: Path = SCRIPT, **environment: str
) -> None:
    """Starts a run and kills -9 a rank somewhere after it has the checkpoint of a step."""
    launched = begin_and_wait(command, folder, step, LMGYM_TEST_SLEEP="0.5", **NOISY, **environment)
    pids = workers(launched, script)
    time.sleep(delay)
    os.kill(pids[rank], signal.SIGKILL)
    finish(launched)
    assert step <= steps(folder)[-1] < UPDATES
    assert not (folder / "model").exists()


@pytest.mark.parametrize(
    ("engine", "rank", "step"), [("plain", 0, 8), slow("ddp", 1, 4), slow("zero2", 0, 8), slow("zero3", 1, 4)]
)
def test_a_killed_run_ends_as_the_uninterrupted_one(
    engine: str, rank: int, step: int, asked: Words, whole, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill(asked(engine, folder), folder, step, rank, delay=random.Random(engine).uniform(0.0, 1.0))
    done = run(asked(engine, folder), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"resuming from {folder / 'checkpoints'}" in done.stdout.replace("\n", "")
    assert_as_uninterrupted(folder, whole(engine))


def assert_killed_run_ends_as_whole(asked: Words, engine: str, tmp_path: Path, **changes: object) -> None:
    """A run with these settings that is killed and started again is one that was not."""
    wanted, folder = tmp_path / "whole", tmp_path / "run"
    done = run(asked(engine, wanted, **changes), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    kill(asked(engine, folder, **changes), folder, 8, 0, delay=0.4)
    done = run(asked(engine, folder, **changes), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_as_uninterrupted(folder, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero2", "zero3"])
def test_so_does_one_with_micro_batches_by_tokens(engine: str, asked: Words, tmp_path: Path) -> None:
    assert_killed_run_ends_as_whole(asked, engine, tmp_path, tokens_per_micro_batch=100)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero2", "zero3"])
def test_so_does_one_whose_groups_are_refilled(engine: str, asked: Words, tmp_path: Path) -> None:
    changes = {"method": "grpo", "num_generations": 4, "max_refills": 2, "kl_in": "loss", "entropy_coef": 0.01}
    assert_killed_run_ends_as_whole(asked, engine, tmp_path, **changes)


REWARDS = """
import asyncio, random, time
async def noisy(completions, **columns):
    await asyncio.sleep(0)
    time.sleep(0.3)
    return [len(text) + random.random() for text in completions]
def constant(solution_str):
    return 3.0
"""


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["group", "run"])
def test_so_does_one_whose_rewards_are_functions_of_a_file(
    normalize: str, talkative_models: dict[str, Path], chats_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text(REWARDS)
    functions = f"{tmp_path}/f.py:noisy" + (f",{tmp_path}/f.py:constant" if normalize == "group" else "")
    script = ROOT / "ppo/experiments/hh_harmless.py"

    def command(output: Path) -> list:
        values = {
            "model": talkative_models["gpt2"], "prompts": chats_file, "output": output, "method": "grpo",
            "num_generations": 4, "reward": functions, "normalize": normalize, "precision": "fp32", "eval_size": 6,
            "num_rollouts": 16, "max_new_tokens": 8, "global_batch": 8, "micro_batch": 2, "ppo_epochs": 2, **TRAIN,
        }  # fmt: skip
        return launch(ENGINES["plain"][0], *flags(**values), script=script)

    done = run(command(tmp_path / "whole"))
    assert done.returncode == 0, done.stderr[-3000:]
    kill(command(tmp_path / "run"), tmp_path / "run", 8, 0, delay=0.5, script=script)
    done = run(command(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert_as_uninterrupted(tmp_path / "run", tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["zero2", "zero3"])
def test_with_a_damaged_shard_the_run_resumes_from_the_checkpoint_before(
    engine: str, asked: Words, whole, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    kill(asked(engine, folder), folder, 8, 1, delay=0.0)
    damaged = newest(folder)
    shard = next(damaged.glob("global_step*/*zero_pp_rank_1*optim_states.pt"))
    shard.write_bytes(shard.read_bytes()[:-100])
    done = run(asked(engine, folder), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.replace("\n", "")
    assert f"{damaged} was skipped: global_step" in said
    assert f"resuming from {damaged.with_name(f'step-{int(damaged.name[5:]) - AN_ITERATION:08d}')}" in said
    assert_as_uninterrupted(folder, whole(engine))


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="a real GPU adds up in no fixed order")
def test_a_killed_run_in_fp16_resumes_with_its_loss_scale(asked: Words, tmp_path: Path) -> None:
    sections, file = json.loads((ROOT / "configs/zero2.json").read_text()), tmp_path / "high.json"
    file.write_text(json.dumps(sections | {"fp16": {"enabled": "auto", "initial_scale_power": 24}}))
    high = {"deepspeed": file, "precision": "fp16", "ranks": 1}
    straight, folder = tmp_path / "straight", tmp_path / "run"
    assert run(asked("zero2", straight, **high), **NOISY, **PRETENDED).returncode == 0
    skipped = {line["step"]: line["policy/skipped_updates"] for line in read_lines(straight / "metrics.jsonl")[1:]}
    assert skipped[AN_ITERATION] > 0, "the first scale is too high"
    assert skipped[UPDATES] == 0, "and is lowered"
    kill(asked("zero2", folder, **high), folder, 8, 0, 0.5, **PRETENDED)
    assert run(asked("zero2", folder, **high), **NOISY, **PRETENDED).returncode == 0
    assert_as_uninterrupted(folder, straight)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero3"])
def test_killed_again_and_again_at_random_it_still_ends_the_same(
    engine: str, asked: Words, whole, tmp_path: Path
) -> None:
    chance, folder = random.Random(engine), tmp_path / "run"
    for _ in range(3):
        target = min(UPDATES - 2 * AN_ITERATION, (steps(folder) or [0])[-1] + AN_ITERATION)
        kill(asked(engine, folder), folder, target, chance.randrange(2 if engine == "zero3" else 1), chance.random())
    assert run(asked(engine, folder), **NOISY).returncode == 0
    assert_as_uninterrupted(folder, whole(engine))


@pytest.mark.slow
def test_a_run_killed_after_its_last_update_only_saves(asked: Words, whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert run(asked("plain", folder), **NOISY).returncode == 0
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"outcome": "running"}))
    (folder / "model" / "model.safetensors").unlink()
    before = (folder / "model" / "README.md").read_text()
    assert "| reward/mean |" in before
    assert run(asked("plain", folder), **NOISY).returncode == 0
    assert_as_uninterrupted(folder, whole("plain"))
    assert (folder / "model" / "README.md").read_text() == before


@pytest.mark.parametrize("engine", ["plain", slow("ddp"), slow("zero2"), slow("zero3")])
def test_sigterm_saves_at_the_iterations_end_and_stops(engine: str, asked: Words, whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launched = begin_and_wait(asked(engine, folder), folder, AN_ITERATION, LMGYM_TEST_SLEEP="0.5", **NOISY)
    os.kill(max(workers(launched, SCRIPT).values()), signal.SIGTERM)
    ended = finish(launched)
    assert ended.returncode == TORCHRUN.get(engine, 75), ended.stderr[-2000:]
    assert outcome(folder) == ("interrupted", 75)
    assert steps(folder)[-1] % AN_ITERATION == 0
    assert not (folder / "model").exists()
    done = run(asked(engine, folder), **NOISY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_as_uninterrupted(folder, whole(engine))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "before", "after"), [("ddp", 2, 1), ("ddp", 1, 2), ("zero2", 2, 1), ("zero2", 1, 2), ("zero3", 2, 1)]
)
def test_another_number_of_ranks_is_refused_or_converted(
    engine: str, before: int, after: int, asked: Words, talkative_models, tmp_path: Path
) -> None:
    # without noise all but rounding is the same however many ranks there are; rounding may choose another token
    folder, straight = tmp_path / "run", tmp_path / "straight"
    changes = {"max_updates": 12}
    launched = begin_and_wait(asked(engine, folder, ranks=before, **changes), folder, 4, LMGYM_TEST_SLEEP="0.5")
    for pid in workers(launched, SCRIPT).values():
        os.kill(pid, signal.SIGTERM)
    finish(launched)
    assert outcome(folder) == ("interrupted", 75)
    at = steps(folder)[-1]
    assert at < 12
    refused = run(asked(engine, folder, ranks=after, **changes))
    assert refused.returncode == TORCHRUN.get(engine, 2)
    said = words(refused.stderr)
    assert f"was written by {before} rank(s), this run has {after}" in said
    assert "--reshard" in said
    assert steps(folder)[-1] == at, "a refusal changes nothing"
    done = run(asked(engine, folder, "--reshard", ranks=after, **changes))
    assert done.returncode == 0, done.stderr[-3000:]
    assert run(asked("plain", straight, **changes)).returncode == 0
    found, wanted = ({line["step"]: line for line in read_lines(x / "metrics.jsonl")} for x in (folder, straight))
    assert list(found) == list(wanted) == [0, 4, 8, 12]  # 0: judged before step 1
    assert json.loads((folder / "run.json").read_text())["resumed_at"] == at
    for name in ("loss/policy", "loss/value", "kl/coefficient", "reward/running_mean"):
        # of the iterations after the change, the first is like that of a run without one
        assert found[at + 4][name] == pytest.approx(wanted[at + 4][name], abs=1e-4), name


@pytest.mark.slow
def test_other_settings_and_a_folder_in_use_are_refused(asked: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launched = begin_and_wait(asked("plain", folder), folder, AN_ITERATION, LMGYM_TEST_SLEEP="2", **NOISY)
    second = run(asked("plain", folder))
    assert launched.process.poll() is None
    assert second.returncode == 73
    assert f"process {workers(launched, SCRIPT)[0]}" in words(second.stderr)
    launched.process.kill()
    finish(launched)
    other = run(asked("plain", folder, cliprange=0.3))
    assert other.returncode == 2
    assert "cliprange was None, now 0.3" in words(other.stderr)
    other = run(asked("plain", folder, max_prompt=24))
    assert "max_prompt was 0, now 24" in words(other.stderr)


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        ("plain", "loss"),
        slow("plain", "gradient"),
        slow("ddp", "gradient"),
        slow("zero2", "loss"),
        slow("zero3", "gradient"),
    ],
)
def test_a_non_finite_loss_stops_before_the_weights_change(
    engine: str, fault: str, asked: Words, tmp_path: Path
) -> None:
    folder, rank = tmp_path / "run", 0 if engine == "plain" else 1
    at = 18 if engine == "plain" else 9  # forwards: 4 an update on one rank, 2 on each of two; so the fifth update
    planted = {"LMGYM_TEST_FAULT": fault, "LMGYM_TEST_AT": str(at), "LMGYM_TEST_RANK": str(rank)}
    done = run(asked(engine, folder), **planted, **NOISY)
    assert done.returncode == TORCHRUN.get(engine, 65), done.stderr[-3000:]
    assert outcome(folder) == ("non_finite", 65)
    said = json.loads((folder / "non_finite.json").read_text())
    assert said["update"] == 5
    assert said["ranks"][rank]["found"] == ("a loss of inf" if fault == "loss" else "a gradient that is not finite")
    assert all("of this rank," in row for row in said["ranks"][rank]["rows"])
    assert len(said["ranks"][rank]["rows"]) == (2 if fault == "loss" else 8 if engine == "plain" else 4)
    assert steps(folder) == [4], "the last good checkpoint is there"
    assert "the weights are as after update 4" in words(done.stderr)


@pytest.mark.parametrize(
    ("engine", "fault", "error"),
    [
        ("plain", "raise", "planted"), slow("plain", "nan", "nan"), slow("plain", "words", "needed: a number"),
        slow("plain", "count", "rewards for"), slow("plain", "half", "needed: a number"),
        slow("zero2", "raise", "planted"),
    ],
)  # fmt: skip
def test_too_many_failed_rewards_end_a_run_with_their_reason(
    engine: str, fault: str, error: str, asked: Words, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    # on the first rank of two, or on the only one; from the second iteration on
    planted = {"LMGYM_TEST_FAULT": fault, "LMGYM_TEST_AT": "2", "LMGYM_TEST_RANK": "0"}
    done = run(asked(engine, folder, eval_updates=UPDATES), **planted)
    assert done.returncode == 69, done.stderr[-3000:]
    assert outcome(folder) == ("rewards_failed", 69)
    failed = 8 if engine == "zero2" or fault == "half" else 16
    said = words(done.stderr)
    assert f"{failed} of 16 rewards failed, more than max_failed_rewards=0.1 allows" in said
    assert error in said
    assert steps(folder) == [4]


@pytest.mark.slow
def test_an_error_of_one_rank_is_reported(asked: Words, tmp_path: Path) -> None:
    planted = {"LMGYM_TEST_FAULT": "stop", "LMGYM_TEST_RANK": "1"}
    done = run(asked("zero2", tmp_path / "run"), **planted)
    assert done.returncode == 69
    assert "error: the scorer's budget is spent" in words(done.stderr)
    assert outcome(tmp_path / "run") == ("failed", 69)


@pytest.mark.slow
def test_fewer_failed_rewards_are_masked_and_counted(asked: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    planted = {"LMGYM_TEST_FAULT": "half"}
    done = run(asked("plain", folder, max_failed_rewards=0.6), **planted)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in read_lines(folder / "metrics.jsonl") if line["step"]]
    assert [line["rollout/failed_rewards"] for line in lines] == [0.5] * 6
    rows = read_lines(sorted((folder / "samples").glob("rollouts-*"))[0])
    assert [row["reward"] is None for row in rows] == [True, False] * 4
    assert all("needed: a number" in row["error"] for row in rows[::2])


@pytest.mark.parametrize("engine", ["plain", slow("zero2")])
def test_a_collapsed_policy_ends_the_run_and_names_its_last_good_checkpoint(
    engine: str, asked: Words, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    done = run(asked(engine, folder, max_kl=0.05, learning_rate=1e-2))
    assert done.returncode == 68, done.stderr[-3000:]
    assert outcome(folder) == ("collapsed", 68)
    said = words(done.stderr)
    assert "more than max_kl=0.05" in said
    good = [f"step-{step:08d}" for step in steps(folder)]
    [aside] = (folder / "checkpoints").glob("collapsed-step-*")
    assert not good or aside.name > f"collapsed-{good[-1]}", "of the policy whose replies these were"
    assert (good[-1] if good else "there is no earlier checkpoint") in said, "the last good one is named"
    assert not (folder / "model").exists()
