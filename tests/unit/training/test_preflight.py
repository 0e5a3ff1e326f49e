"""Faults that are found before the first update."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lmgym.errors import InputError
from lmgym.training.preflight import checkpoint_bytes, idle_gpus, refuse_small_disk, stale_build_locks

MIB = 2**20


def test_a_checkpoint_is_four_bytes_a_weight_and_eight_more_for_each_that_is_trained() -> None:
    assert checkpoint_bytes(10, 10) == 120
    assert checkpoint_bytes(10, 3) == 64
    assert checkpoint_bytes(10, 0) == 40
    assert checkpoint_bytes(0, 0) == 0


@pytest.fixture
def disk_of_16_mib(tmp_path: Path) -> Iterator[Path]:
    """A real disk: 16 MiB, less what it needs itself."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_holds_the_checkpoints_one_in_the_making_and_the_model(disk_of_16_mib: Path) -> None:
    quarter = MIB // 4  # of a million weights: 1 MiB of them, 3 MiB a checkpoint
    refuse_small_disk(disk_of_16_mib, quarter, quarter, 4)  # 5 * 3 + 1 = 16 MiB: just fits
    with pytest.raises(InputError) as caught:
        refuse_small_disk(disk_of_16_mib, quarter, quarter, 5)
    assert str(caught.value) == (
        f"{disk_of_16_mib} has 16.0 MiB free; needed: 19.0 MiB for 5 checkpoints of 3.0 MiB, one being written, and "
        "the model; free space, name another --output, or use a smaller --save_total_limit"
    )
    refuse_small_disk(disk_of_16_mib, quarter, 0, 14)  # 15 * 1 + 1: where nothing is trained, no moments
    with pytest.raises(InputError):
        refuse_small_disk(disk_of_16_mib, quarter, 0, 15)


def test_without_checkpoints_a_disk_holds_the_model_alone(disk_of_16_mib: Path) -> None:
    refuse_small_disk(disk_of_16_mib, 4 * MIB, 4 * MIB, 0)
    with pytest.raises(InputError, match=r"16\.0 MiB free; needed: 16\.1 MiB for the model; free space"):
        refuse_small_disk(disk_of_16_mib, 4 * MIB + MIB // 40, 4 * MIB, 0)


def test_what_is_there_already_is_not_free(disk_of_16_mib: Path) -> None:
    (disk_of_16_mib / "data").write_bytes(bytes(MIB))
    with pytest.raises(InputError, match=r"15\.0 MiB free; needed: 16\.0 MiB"):
        refuse_small_disk(disk_of_16_mib, MIB // 4, MIB // 4, 4)


def test_no_disk_holds_everything(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"free; needed: \d+\.\d GiB for 2 checkpoints .* smaller --save_total_limit"):
        refuse_small_disk(tmp_path, 10**15, 10**15, 2)


def plant(lock: Path, minutes: float) -> Path:
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 60 * minutes,) * 2)
    return lock


def test_a_lock_of_a_build_that_did_not_end_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    lock = plant(tmp_path / "py311_cpu" / "fused_adam" / "lock", minutes=90)
    (line,) = stale_build_locks()
    assert line.startswith(f"found {lock}, 90 min old: a build of fused_adam did not end")
    assert line.endswith(f"rm {lock}")
    plant(tmp_path / "deepspeed_shm_comm" / "lock", minutes=0)
    assert [line.split(" min old: a build of ")[1].split()[0] for line in stale_build_locks()] == [
        "deepspeed_shm_comm",
        "fused_adam",
    ]


def test_without_a_variable_builds_lie_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert stale_build_locks() == []
    plant(tmp_path / "torch_extensions" / "py311_cpu" / "fused_adam" / "lock", minutes=1)
    assert len(stale_build_locks()) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert stale_build_locks() == []
    plant(tmp_path / "home" / ".cache" / "torch_extensions" / "fused_adam" / "lock", minutes=1)
    assert len(stale_build_locks()) == 1


def test_a_build_that_ended_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "none"))
    assert stale_build_locks() == []
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "fused_adam").mkdir()
    for name in ("fused_adam.so", "build.ninja", "lock.txt"):
        (tmp_path / "fused_adam" / name).touch()
    assert stale_build_locks() == []


@pytest.mark.parametrize(("gpus", "ranks", "said"), [(8, "1", 1), (8, "8", 0), (1, "1", 0), (0, "1", 0)])
def test_a_process_alone_beside_several_gpus_is_told_that_it_uses_one(
    gpus: int, ranks: str, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setenv("WORLD_SIZE", ranks)
    lines = idle_gpus()
    assert len(lines) == said
    assert all("8 GPUs are here" in line and "deepspeed --num_gpus 8" in line for line in lines)
