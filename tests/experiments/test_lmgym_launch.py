"""`lmgym train` and `lmgym launch` for real: what runs is what they print, with its exit code, signals and flags."""

import os
import shlex
import signal
from pathlib import Path

import pytest
from launching import BIN, ROOT, finish, flags, run, start, words
from patience import wait_until

LMGYM = (BIN / "python", "-m", "lmgym.cli.main")
OWN = '''"""Writes down its launch, waits for SIGTERM if it is told to, and exits with 7 when all ranks have written."""

import glob, os, signal, sys, time

rank, ranks = os.environ.get("RANK", "alone"), os.environ.get("WORLD_SIZE", "1")
signal.signal(signal.SIGTERM, lambda number, frame: os._exit(9))
if "--deepspeed" in sys.argv:
    from lmgym.runs.interrupts import launchers

    with open(f"launchers_{rank}.txt", "w") as file:
        file.write(" ".join(str(one.pid) for one in launchers()))
with open(f"part_{rank}", "w") as file:
    file.write(f"{os.getpid()} {ranks} {' '.join(sys.argv[1:])}")
os.replace(f"part_{rank}", f"rank_{rank}.txt")
while len(glob.glob("rank_*.txt")) < int(ranks):  # a launcher kills the others when one has failed
    time.sleep(0.05)
time.sleep(600 * ("--wait" in sys.argv))
sys.exit(7)
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def notes(folder: Path) -> dict[str, list[str]]:
    """The lines that each rank wrote down."""
    return {path.stem.removeprefix("rank_"): path.read_text().split() for path in folder.glob("rank_*.txt")}


def test_one_process_is_plain_python_with_the_exit_code_of_the_experiment(own: Path) -> None:
    done = run((*LMGYM, "launch", "own.py", "--num_gpus", 1, "--seed", 3), cwd=own.parent)
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"$ {shlex.join([str(BIN / 'python'), 'own.py', '--seed', '3'])}\n"
    assert notes(own.parent)["alone"][1:] == ["1", "--seed", "3"]


def test_the_process_that_was_started_becomes_the_experiment_so_that_signals_reach_it(own: Path) -> None:
    launched = start((*LMGYM, "train", "ppo", own, "--num_gpus", 1, "--wait"), cwd=own.parent)
    wait_until(lambda: "--wait" in notes(own.parent).get("alone", ()))
    assert notes(own.parent)["alone"][0] == str(launched.process.pid)
    os.kill(launched.process.pid, signal.SIGTERM)
    assert launched.process.wait(60) == 9
    finish(launched)


def test_deepspeed_starts_the_processes_that_were_asked_for_and_gives_their_exit_code(own: Path) -> None:
    launched = start((*LMGYM, "launch", own, "--deepspeed", "zero2", "--num_gpus", 2, "--seed", 3), cwd=own.parent)
    done = finish(launched)
    assert done.returncode == 7, done.stderr
    # a worker knows both processes of the launcher, whose deaths it would notice
    assert len(set((own.parent / "launchers_0.txt").read_text().split()) - {str(launched.process.pid)}) == 2
    found = notes(own.parent)
    assert {rank: words[1] for rank, words in found.items()} == {"0": "2", "1": "2"}
    assert found["0"][3:] == ["--deepspeed", "zero2", "--seed", "3"]  # after deepspeed's --local_rank
    assert "-m deepspeed.launcher.runner --num_gpus 2 " in done.stdout.splitlines()[0]


def test_torchrun_starts_several_processes_without_deepspeed(own: Path) -> None:
    done = run((*LMGYM, "launch", own, "--num_gpus", 2), cwd=own.parent)
    assert done.returncode == 1  # torchrun turns every failure into 1
    assert {rank: words[1] for rank, words in notes(own.parent).items()} == {"0": "2", "1": "2"}


def test_an_experiments_flags_are_shown_by_its_name(tmp_path: Path) -> None:
    done = run((*LMGYM, "train", "reward", "hh_pairwise", "--help"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--learning_rate FLOAT" in done.stdout
    assert "-m lmgym" not in done.stdout
    assert "$ " not in done.stdout


@pytest.mark.slow
def test_a_dry_run_by_name_is_that_of_the_file_with_a_config_by_name(
    small_models: dict[str, Path], few_pairs: Path, tmp_path: Path
) -> None:
    given = flags(model=small_models["llama"], dataset=few_pairs, eval_size=5, max_length=256, precision="fp32")
    more = (*flags(global_batch=4, micro_batch=4, deepspeed="zero2"), "--dry_run")
    done = run((*LMGYM, "train", "reward", "hh_pairwise", *given, *more), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert str(ROOT / "reward_models/experiments/hh_pairwise.py") in done.stdout.splitlines()[0]
    assert "ZeRO 2, 1 rank(s), fp32" in words(done.stdout)
    assert list(tmp_path.iterdir()) == []
