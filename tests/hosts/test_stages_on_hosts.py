"""Stages on two hosts, by each launcher as docs/many_nodes.md has it: the weights are those of two ranks on one."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import ROOT, flags, launch, read_metrics
from launching import run as run_here
from machines import Cluster
from multinode import OURS, page_batch, run
from patience import PATIENCE
from safetensors.torch import load_file
from slurm import Slurm

pytestmark = pytest.mark.slow
SCRIPTS = {
    "reward": ROOT / "reward_models/experiments/hh_pairwise.py",
    "dpo": ROOT / "preferences/experiments/dpo.py",
    "ppo": ROOT / "ppo/experiments/hh_harmless.py",
}
LEARN = {"learning_rate": 1e-3, "global_batch": 4, "micro_batch": 1, "max_updates": 4, "precision": "fp32"}
LEARN |= {"tracking": "none", "save_updates": -1, "eval_updates": 4}
Arguments = Callable[[str, Path], list]


@pytest.fixture(scope="module")
def arguments(
    small_models: dict[str, Path], talkative_models: dict[str, Path], scorer_folders: dict[str, Path],
    few_pairs: Path, held_out_pairs: Path, chats_file: Path,
) -> Arguments:  # fmt: skip
    """The flags of a stage's run, but for its engine: `arguments(stage, folder)`."""
    pairs = {"model": small_models["llama"], "dataset": few_pairs, "eval_dataset": held_out_pairs, "max_length": 128}
    pairs["log_updates"] = 1
    sampled = {"sample_prompts": 2, "sample_tokens": 6}
    scorers = f"a={scorer_folders['gpt2']},b={scorer_folders['bert']}"
    play = {"model": talkative_models["gpt2"], "prompts": chats_file, "scorers": scorers, "weights": "a=1,b=.5"}
    play |= {"num_rollouts": 8, "max_new_tokens": 8, "eval_size": 8}
    given = {"reward": pairs, "dpo": pairs | sampled, "ppo": play}
    return lambda stage, folder: flags(**given[stage], **LEARN, output=folder)


@pytest.fixture(scope="module")
def one_host(arguments: Arguments, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a stage's run by two ranks of this machine, made when it is first asked for."""
    made: dict[str, Path] = {}

    def of(stage: str) -> Path:
        if stage not in made:
            made[stage] = tmp_path_factory.mktemp("one_host") / stage
            zero = ["--deepspeed", ROOT / "configs/zero2.json"]
            done = run_here(launch("deepspeed", *arguments(stage, made[stage]), *zero, script=SCRIPTS[stage]))
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return made[stage]

    return of


def weights(folder: Path) -> str:
    """sha256 of the weights of a run."""
    total = hashlib.sha256()
    for name, value in sorted(load_file(folder / "model/model.safetensors").items()):
        total.update(name.encode() + value.numpy().tobytes())
    return total.hexdigest()


def assert_same_run(found: Path, wanted: Path) -> None:
    a, b = read_metrics(found), read_metrics(wanted)
    losses = [name for name in b if "loss" in name]
    assert losses
    assert [a[name] for name in losses] == [b[name] for name in losses]
    assert weights(found) == weights(wanted)


@pytest.mark.parametrize("stage", list(SCRIPTS))
@pytest.mark.parametrize("kind", ["deepspeed", "torchrun"])
def test_two_hosts_train_the_weights_of_one(
    kind: str, stage: str, two_hosts: Cluster, arguments: Arguments, one_host, tmp_path: Path
) -> None:
    words = [*arguments(stage, tmp_path), "--deepspeed", ROOT / "configs/zero2.json"]
    run(kind, two_hosts, SCRIPTS[stage], words)
    assert_same_run(tmp_path, one_host(stage))


@pytest.mark.parametrize("stage", list(SCRIPTS))
def test_a_job_of_slurm_does_too(stage: str, slurm: Slurm, arguments: Arguments, one_host, tmp_path: Path) -> None:
    words = [*arguments(stage, tmp_path / "run"), "--deepspeed", ROOT / "configs/zero2.json"]
    file = page_batch(tmp_path / "job", SCRIPTS[stage], words)
    job = slurm.submit(file, cwd=ROOT, **OURS)
    state = slurm.wait_for_state(job, "COMPLETED", "FAILED", seconds=PATIENCE)
    assert state == "COMPLETED", Path(f"{file}.{job}.log").read_text()[-5000:]
    assert_same_run(tmp_path / "run", one_host(stage))
