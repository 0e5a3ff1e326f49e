"""Slurm's signals, requeues and a node's power failure: a job that was requeued ends as one without a fault."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import SCRIPT, digest, measured, outcome, steps
from launching import ROOT
from machines import wait_for
from multinode import OURS, noisy, page_batch
from patience import PATIENCE
from slurm import Slurm

pytestmark = pytest.mark.slow
SLOWLY = {"LMGYM_TEST_SLEEP": "0.3"}
Submit = Callable[..., tuple[str, Path]]


@pytest.fixture(scope="module")
def submit(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path) -> Submit:
    """Submits the page's batch file: the id of the job, and the folder of its run."""

    def go(slurm: Slurm, folder: Path, *, config: str = "zero2", slowly: bool = False, **changes) -> tuple[str, Path]:
        folder.mkdir(exist_ok=True)
        words = noisy(folder / "run", small_models["llama"], few_pairs, held_out_pairs, config, **changes)
        file = page_batch(folder / "job", SCRIPT, words)
        nodes = f"--nodes={len(slurm.cluster.hosts)}"
        return slurm.submit(file, nodes, cwd=ROOT, **OURS, **(SLOWLY if slowly else {})), folder / "run"

    return go


def whole_run(slurm: Slurm, submit: Submit, folder: Path, **changes) -> Path:
    job, run = submit(slurm, folder, **changes)
    slurm.wait_for_state(job, "COMPLETED", seconds=PATIENCE)
    return run


def wait_for_step(run: Path, step: int) -> None:
    wait_for(lambda: (steps(run) or [0])[-1] >= step, PATIENCE, f"checkpoint {step}")


def assert_ends_as(slurm: Slurm, job: str, run: Path, whole: Path) -> None:
    """Once it is let begin again, the job resumes, and ends with the weights and metrics of another run."""
    assert outcome(run)[0] != "finished"
    saved = steps(run)[-1]
    slurm.start_now(job)
    slurm.wait_for_state(job, "COMPLETED", seconds=PATIENCE)
    log = (run.parent / f"job.{job}.log").read_text()
    assert f"step-{saved:08d}" in log.partition("resuming from")[2].replace("\n", ""), log[-5000:]
    assert digest(run) == digest(whole)
    assert measured(run) == measured(whole)


def test_the_time_of_a_job_ends(slurm: Slurm, submit: Submit, tmp_path: Path, timed) -> None:
    whole = whole_run(slurm, submit, tmp_path / "whole")
    job, run = submit(slurm, tmp_path / "job", slowly=True)
    wait_for_step(run, 4)
    with timed("Slurm: USR1 to the batch script, as --signal=B:USR1@300 does"):
        slurm.ask("scancel", "--batch", "--signal=USR1", job)
        slurm.wait_for_state(job, "PENDING", seconds=PATIENCE)
    assert outcome(run) == ("interrupted", 75)
    assert_ends_as(slurm, job, run, whole)
    job, run = submit(slurm, tmp_path / "again", slowly=True)
    wait_for_step(run, 4)
    with timed("Slurm: scontrol requeue"):
        slurm.ask("scontrol", "requeue", job)
        slurm.wait_for_state(job, "PENDING", seconds=PATIENCE)
    assert outcome(run) == ("interrupted", 75)
    assert_ends_as(slurm, job, run, whole)
    job, run = submit(slurm, tmp_path / "steps", slowly=True)
    wait_for_step(run, 4)
    with timed("Slurm: USR1 to the steps alone, as --signal=USR1@300 does"):
        slurm.ask("scancel", "--signal=USR1", job)
        slurm.wait_for_state(job, "FAILED", seconds=PATIENCE)
    assert outcome(run) == ("interrupted", 75)


def test_a_node_of_three_fails_under_zero_3_and_comes_back(
    slurm_of_three: Slurm, submit: Submit, tmp_path: Path, timed
) -> None:
    changes = {"config": "zero3", "global_batch": 6, "stall_timeout": 60}
    whole = whole_run(slurm_of_three, submit, tmp_path / "whole", **changes)
    job, run = submit(slurm_of_three, tmp_path / "job", slowly=True, **changes)
    wait_for_step(run, 4)
    middle = slurm_of_three.cluster[1]
    with timed("Slurm: power failure of node-b, of three"):
        slurm_of_three.cluster.power_off(middle)
        slurm_of_three.wait_for_state(job, "PENDING", seconds=PATIENCE)
    assert outcome(run)[0] != "finished"
    slurm_of_three.cluster.boot(middle)
    slurm_of_three.start_daemon(middle)
    slurm_of_three.wait_for_nodes(PATIENCE)
    assert_ends_as(slurm_of_three, job, run, whole)
