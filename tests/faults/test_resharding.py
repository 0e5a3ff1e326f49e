"""Another number of ranks: refused with the fix, or converted, with the losses of the run that kept its ranks."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import ENGINES, ROOT, SCRIPT, UPDATES, begin_and_wait, outcome, steps, workers
from launching import finish, flags, launch, read_metrics, run

# without dropout and noise: random numbers of ranks that are no more cannot go on
QUIET = {"LMGYM_TEST_QUIET": "1"}
Words = Callable[..., list]
EVERY = {
    "max_length": 256, "global_batch": 4, "micro_batch": 1, "max_updates": UPDATES, "learning_rate": 1e-3,
    "log_updates": 1, "eval_updates": 5, "save_updates": 2, "precision": "fp32", "tracking": "none",
}  # fmt: skip


@pytest.fixture(scope="module")
def even(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path) -> Words:
    """The experiment on a model without dropout: `even(engine, output, ranks, **changes)`."""

    def make(engine: str, output: Path, ranks: int, **changes) -> list:
        kind, config = ENGINES[engine]
        values = {"model": small_models["llama"], "dataset": few_pairs, "eval_dataset": held_out_pairs, **EVERY}
        values |= {"output": output, **({"deepspeed": ROOT / "configs" / config} if config else {}), **changes}
        return launch(kind, *flags(**values), ranks=ranks, script=SCRIPT)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_checkpoint_is_refused_by_other_ranks_or_converted(
    engine: str, before: int, after: int, even: Words, tmp_path: Path
) -> None:
    code = 1 if engine == "ddp" else 2
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert run(even(engine, whole, 1), **QUIET).returncode == 0
    launched = begin_and_wait(even(engine, folder, before), folder, 2, **QUIET, LMGYM_TEST_SLEEP="0.1")
    for pid in workers(launched).values():
        os.kill(pid, signal.SIGTERM)
    finish(launched)
    assert outcome(folder) == ("interrupted", 75)
    assert steps(folder)[-1] < UPDATES
    refused = run(even(engine, folder, after), **QUIET)
    assert refused.returncode == code
    said = " ".join(refused.stderr.split())
    assert f"was written by {before} rank(s), this run has {after}" in said
    assert "--reshard" in said
    assert outcome(folder) == ("interrupted", 75), "a refusal changes nothing"
    done = run([*even(engine, folder, after), "--reshard"], **QUIET)
    assert done.returncode == 0, done.stderr[-3000:]
    assert outcome(folder) == ("finished", 0)
    found, wanted = read_metrics(folder), read_metrics(whole)
    assert len(found["train/loss"]) == UPDATES
    assert found["train/loss"] == pytest.approx(wanted["train/loss"], abs=1e-4)
    assert json.loads((folder / "run.json").read_text())["resumed_at"] is not None


@pytest.mark.slow
def test_another_engine_is_refused(even: Words, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    launched = begin_and_wait(even("zero2", folder, 2), folder, 2, **QUIET, LMGYM_TEST_SLEEP="0.1")
    os.kill(max(workers(launched).values()), signal.SIGKILL)
    finish(launched)
    for other in ("zero3", "plain"):
        refused = run([*even(other, folder, 2), "--reshard"], **QUIET)
        assert refused.returncode == 2
        assert "was written under ZeRO 2" in " ".join(refused.stderr.split())
