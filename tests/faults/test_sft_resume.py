"""An SFT run that was killed with -9 ends with the weights, metrics, samples and held-out figures of the whole one."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from faulting import ENGINES, ROOT, TIMES, digest, lines_once, outcome, steps, wait_for, workers
from launching import finish, flags, launch, read_lines, run, start

SCRIPT = ROOT / "sft/experiments/chat.py"
UPDATES = 24
KILLED = (2, 8, 14)  # in mid-epoch, at an epoch's end, and in mid-epoch again, or what comes next after these
# 32 conversations in updates of 8: four an epoch; checkpoints at epochs' ends (4, 8, ...) and between (2, 6, ...)
TRAIN = {
    "max_length": 128, "eval_size": 8, "global_batch": 8, "micro_batch": 2, "learning_rate": 1e-3, "log_updates": 3,
    "eval_updates": 5, "save_updates": 2, "precision": "fp32", "tracking": "none", "max_updates": UPDATES,
    "sample_prompts": 2, "sample_tokens": 6, "epochs": 6, "dropout": "true",
}  # fmt: skip


def command(engine: str, output: Path, model: Path, chats: Path) -> list:
    kind, config = ENGINES[engine]
    values = {"model": model, "dataset": chats, "output": output, **TRAIN}
    if config:
        values["deepspeed"] = ROOT / "configs" / config
    return launch(kind, *flags(**values), script=SCRIPT)


def left(folder: Path) -> list:
    """All that a run measured, but for its times."""
    lines = [{k: v for k, v in line.items() if k not in TIMES} for line in lines_once(folder / "metrics.jsonl")]
    samples = {path.name: read_lines(path) for path in sorted((folder / "samples").glob("[!.]*"))}
    return [lines, samples, read_lines(folder / "held_out.jsonl"), (folder / "evaluation.json").read_text()]


def kill(words: list, folder: Path, step: int, rank: int, delay: float) -> None:
    """Starts a run, or goes on with it, and kills -9 a rank somewhere after it has the checkpoint of a step."""
    launched = start(words)
    wait_for(lambda: (steps(folder) or [0])[-1] >= step, launched=launched)
    time.sleep(delay)
    os.kill(workers(launched, SCRIPT)[rank], signal.SIGKILL)
    finish(launched)
    assert step <= steps(folder)[-1] < UPDATES
    assert outcome(folder)[0] != "finished"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "ddp", "zero2", "zero3"])
def test_a_run_that_was_killed_at_several_points_ends_as_the_uninterrupted_one(
    engine: str, dropping: Path, chats_file: Path, tmp_path: Path
) -> None:
    whole, killed, chance = tmp_path / "whole", tmp_path / "killed", random.Random(engine)
    words = command(engine, killed, dropping, chats_file)
    done = run(command(engine, whole, dropping, chats_file))
    assert done.returncode == 0, done.stderr[-3000:]
    for step in KILLED:
        kill(words, killed, step, chance.randrange(1 if engine == "plain" else 2), chance.uniform(0.0, 0.3))
    done = run(words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from" in done.stdout
    assert digest(killed) == digest(whole)
    assert left(killed) == left(whole)
    assert outcome(killed) == ("finished", 0)
