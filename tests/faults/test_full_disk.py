"""A disk that fills up under a run: exit code 74 and one line, on every rank; with room again the run goes on."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import ENGINES, ROOT, digest, measured, outcome, said_by_ranks, steps
from launching import flags, launch, read_lines, run

Words = Callable[..., list]
CODES = {"ddp": 1}  # torchrun turns every code into 1
PPO = ROOT / "tests/experiments/ppo_script.py"


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def one_error(stderr: str) -> str:
    """The one line on what happened; a launcher's own lines and the progress bar are beside it."""
    said = said_by_ranks(stderr)
    assert "Traceback" not in said
    lines = [line for line in said.replace("\r", "\n").splitlines() if line.startswith(("error:", "warning:"))]
    assert len(lines) == 1, lines
    return lines[0]


@pytest.mark.parametrize("engine", ["plain", slow("ddp"), slow("zero2"), slow("zero3")])
def test_a_line_of_metrics_that_finds_no_room_ends_the_run_on_every_rank(engine: str, words: Words, disk: Path) -> None:
    folder = disk / "run"
    # a file may still grow to the end of its last page of 4 KiB: ten lines or so
    changes = {"max_updates": 60, "log_updates": 1, "eval_updates": 100, "save_updates": -1}
    planted = {"LMGYM_TEST_FAULT": "full", "LMGYM_TEST_AT": "8", "LMGYM_TEST_RANK": "0", "LMGYM_TEST_DISK": str(disk)}
    done = run(words(engine, folder, **changes), **planted)
    assert done.returncode == CODES.get(engine, 74), done.stderr[-3000:]
    said = one_error(done.stderr)
    assert f"{folder}/metrics.jsonl could not be written ([Errno 28] No space left on device" in said
    assert re.search(r"; [\d,]+ bytes free; there is no checkpoint yet; free space .* run the same command again", said)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) < 40
    assert not (folder / "model").exists()
    (disk / "filler").unlink()
    done = run(words(engine, folder, **changes | {"max_updates": 2}))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "ddp", "zero2", "zero3"])
def test_with_room_again_the_run_resumes_exactly(engine: str, words: Words, uninterrupted, disk: Path) -> None:
    folder = disk / "run"
    planted = {"LMGYM_TEST_FAULT": "full", "LMGYM_TEST_AT": "15", "LMGYM_TEST_RANK": "0", "LMGYM_TEST_DISK": str(disk)}
    done = run(words(engine, folder), **planted)
    assert done.returncode == CODES.get(engine, 74), done.stderr[-3000:]
    said = one_error(done.stderr)
    last = steps(folder)[-1]
    assert f"the last checkpoint is of step {last} ({folder}/checkpoints/step-{last:08d})" in said
    (disk / "filler").unlink()
    done = run(words(engine, folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert digest(folder) == digest(uninterrupted(engine))
    assert measured(folder) == measured(uninterrupted(engine))
    assert outcome(folder) == ("finished", 0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["plain", "zero2", "zero3"])
def test_ppo_ends_alike_where_its_replies_find_no_room(
    engine: str, talkative_models: dict[str, Path], chats_file: Path, disk: Path
) -> None:
    folder = disk / "run"
    kind, config = ENGINES[engine]
    values = {"model": talkative_models["gpt2"], "prompts": chats_file, "output": folder, "tracking": "none"}
    values |= {"max_updates": 24, "save_updates": 4, "eval_updates": 24}
    values |= {"deepspeed": ROOT / "configs" / config} if config else {}
    command = launch(kind, *flags(**values), script=PPO)
    planted = {"LMGYM_TEST_FAULT": "full", "LMGYM_TEST_AT": "3", "LMGYM_TEST_RANK": "0", "LMGYM_TEST_DISK": str(disk)}
    done = run(command, **planted)
    assert done.returncode == 74, done.stderr[-3000:]
    said = one_error(done.stderr)
    assert "samples/rollouts-000012.jsonl could not be written" in said
    assert f"the last checkpoint is of step 8 ({folder}/checkpoints/step-00000008)" in said
    (disk / "filler").unlink()
    done = run(command)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [line["step"] for line in read_lines(folder / "metrics.jsonl")]
    assert found == [0, 4, 8, 12, 16, 20, 24]
    assert json.loads((folder / "run.json").read_text())["resumed_at"] == 8
