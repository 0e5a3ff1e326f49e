"""Checkpoints after a kill at any write, on a full disk, with flipped bits, and beside another run's files."""

import gc
import io
import json
import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import torch as safetensors

from lmgym.errors import RunStopped
from lmgym.runs import checkpoint_files
from lmgym.runs.checkpoint_files import Checkpoint, file_hash, manifest_hash, read
from lmgym.runs.checkpoints import Checkpoints

FACTS = {"ranks": 1, "settings": {"learning_rate": 0.001, "model": "gpt2"}}
FILES = ["model.safetensors", "optimizer.pt", "trainer_state.json", "rng/rank-00000.pt"]
WHOLE = sorted([*FILES, "manifest.json"])


def write(folder: Path, size: int = 64) -> None:
    """Writes the files of a training loop with its libraries."""
    safetensors.save_file({"weight": torch.arange(size, dtype=torch.float32)}, folder / "model.safetensors")
    torch.save({"moment": torch.ones(size)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 10, "epoch": 0.5}\n')
    (folder / "rng").mkdir()
    torch.save({"torch": torch.get_rng_state()}, folder / "rng" / "rank-00000.pt")


def saved(folder: Path, *steps: int, owner: str = "mine", limit: int = 9) -> Checkpoints:
    """A folder with a checkpoint at each of the steps."""
    found = Checkpoints(folder, owner, limit)
    for step in steps:
        found.save(step, write, FACTS)
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def newest_step(of: Checkpoints) -> int | None:
    checkpoint, _ = of.newest()
    return checkpoint.step if checkpoint else None


def test_a_saved_checkpoint_is_found_with_its_facts(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", "mine").newest() == (None, [])
    (tmp_path / "new").mkdir()
    found = saved(tmp_path / "new" / "checkpoints", 10, 20)
    checkpoint, skipped = found.newest()
    assert (checkpoint, skipped) == (Checkpoint(found.folder / "step-00000020", 20, FACTS), [])
    assert checkpoint
    weight = safetensors.load_file(checkpoint.path / "model.safetensors")["weight"]
    assert torch.equal(weight, torch.arange(64, dtype=torch.float32))
    assert names(found.folder) == ["step-00000010", "step-00000020"]


def test_the_manifest_has_the_size_the_hash_and_the_rank_of_every_file(tmp_path: Path) -> None:
    path = saved(tmp_path, 10).folder / "step-00000010"
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest["step"], manifest["owner"], manifest["facts"]) == (10, "mine", FACTS)
    assert sorted(file["path"] for file in manifest["files"]) == sorted(FILES)
    for file in manifest["files"]:
        # the tool of coreutils, not our own reading
        said = subprocess.run(["sha256sum", path / file["path"]], capture_output=True, text=True, check=True).stdout
        assert (file["sha256"], file["size"], file["rank"]) == (
            said.split()[0],
            (path / file["path"]).stat().st_size,
            0,
        )


DAMAGES: dict[str, Callable[[bytes], bytes | None]] = {
    "emptied": lambda content: b"",
    "cut to half": lambda content: content[: len(content) // 2],
    "cut by a byte": lambda content: content[:-2] if content.endswith(b"}\n") else content[:-1],
    "a bit flipped": lambda content: flipped(content, len(content) // 8),
    "deleted": lambda content: None,
}


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path: Path, name: str, damage: str) -> None:
    found = saved(tmp_path, 10, 20)
    path = tmp_path / "step-00000020" / name
    content = DAMAGES[damage](path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    _, skipped = found.newest()
    assert (newest_step(found), len(skipped)) == (10, 1)
    assert f"{tmp_path / 'step-00000020'} was skipped: " in skipped[0]
    assert name in skipped[0]
    reasons = {"deleted": "is missing", "a bit flipped": "has changed since it was written"}
    manifest = ("cannot be read", "has changed since it was written")
    expected = (
        manifest if name == "manifest.json" else (reasons.get(damage, f"has {len(content or b'')} bytes; needed"),)
    )
    assert any(reason in skipped[0] for reason in expected)


def test_every_flipped_bit_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    found = saved(tmp_path, 10)
    path = tmp_path / "step-00000010" / "manifest.json"
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(flipped(content, place))
        assert newest_step(found) is None, flipped(content, place)[max(0, place - 40) : place + 40]
    path.write_bytes(content)
    assert newest_step(found) == 10


def test_a_checkpoint_with_an_unlisted_file_is_skipped(tmp_path: Path) -> None:
    found = saved(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "rng" / "rank-00001.pt").write_bytes(b"\x80")
    _, skipped = found.newest()
    assert newest_step(found) == 10
    assert skipped == [f"{tmp_path / 'step-00000020'} was skipped: rng/rank-00001.pt is not in its manifest"]


def test_a_checkpoint_with_an_unreadable_file_is_skipped(tmp_path: Path) -> None:
    found = Checkpoints(tmp_path, "mine")
    found.save(10, lambda folder: (folder / "empty").touch(), FACTS)
    path = tmp_path / "step-00000010"
    (path / "empty").unlink()
    (path / "empty").symlink_to("/proc/self/mem")  # of size 0, and its first byte is an error
    assert read(path, "mine") == "empty cannot be read (Input/output error)"


def test_a_checkpoint_of_a_later_format_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, 10).folder / "step-00000010"
    monkeypatch.setattr(checkpoint_files, "FORMAT", 2)
    assert read(path, "mine") == "its format is 1; this version reads 2"


class Canary:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mknod, (str(self.path),)


def rewrite(path: Path, name: str, content: bytes) -> None:
    """Replaces a file of a checkpoint and adapts the manifest, like an attacker."""
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).write_bytes(content)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"] = [
        file | {"size": (path / file["path"]).stat().st_size, "sha256": file_hash(path / file["path"])}
        for file in [*(f for f in manifest["files"] if f["path"] != name), {"path": name, "rank": 0}]
    ]
    manifest["sha256"] = manifest_hash(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def pickled(content: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **how)
    return file.getvalue()


DEEP = "[" * 100_000 + "]" * 100_000
SHARD = "global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt"
HOSTILE: dict[str, tuple[str, Callable[[Path], bytes], str]] = {
    "a pickle that executes": ("optimizer.pt", lambda sung: pickled(Canary(sung)), "cannot be read (UnpicklingError"),
    "a bare pickle": ("optimizer.pt", lambda sung: pickle.dumps(Canary(sung)), "cannot be read ("),
    "random numbers that execute": ("rank-00000.pt", lambda sung: pickled(Canary(sung)), "cannot be read ("),
    "a schedule that executes": ("scheduler.pt", lambda sung: pickled({"a": Canary(sung)}), "cannot be read ("),
    "a shard that executes": (SHARD, lambda sung: pickled(Canary(sung)), "would execute posix.mknod when loaded"),
    "a shard of a later protocol": (SHARD, lambda sung: pickled(Canary(sung), pickle_protocol=4), "cannot be read ("),
    "a shard of the old format": (
        SHARD, lambda sung: pickled(Canary(sung), _use_new_zipfile_serialization=False), "cannot be read ("
    ),
    "shards elsewhere": ("latest", lambda sung: str(sung.parent).encode(), "names '/"),
    "an optimizer that is a list": ("optimizer.pt", lambda sung: pickled([1]), "does not hold a dictionary"),
    "half a file of weights": ("model.safetensors", lambda sung: b"\xff" * 40, "cannot be read (SafetensorError"),
    "a state that is a list": ("trainer_state.json", lambda sung: b"[1]", "does not hold a JSON object"),
    "a state nested deeply": ("trainer_state.json", lambda sung: DEEP.encode(), "cannot be read (ValueError: nested"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_agrees_with_its_manifest_and_cannot_be_loaded_is_skipped_and_executes_nothing(
    tmp_path: Path, what: str
) -> None:
    found, sung = saved(tmp_path / "checkpoints", 10, 20), tmp_path / "sung"
    path = found.folder / "step-00000020"
    name, content, why = HOSTILE[what]
    rewrite(path, name, content(sung))
    _, skipped = found.newest()
    assert newest_step(found) == 10
    assert len(skipped) == 1
    assert skipped[0].startswith(f"{path} was skipped: {name} {why}")
    assert len(skipped[0].splitlines()) == 1
    assert not sung.exists()


def test_shards_as_deepspeed_writes_them_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    from lmgym.distributed.deepspeed_config import import_deepspeed

    # as in Python 3.11.2, which Debian 12 has
    monkeypatch.setattr(ZeroStageEnum, "__reduce_ex__", lambda stage, _: (getattr, (type(stage), stage.name)))
    import_deepspeed()
    content = {
        "loss_scaler": [LossScaler(1.0), DynamicLossScaler(2.0**16, 2.0, 1000, 1.0, 1)],
        "zero_stage": ZeroStageEnum.gradients,
        "param_slice_mappings": [{"weight": fragment_address(numel=3, start=0)}],
        "fp32": torch.ones(3),
    }
    found = saved(tmp_path, 20)
    rewrite(tmp_path / "step-00000020", SHARD, pickled(content))
    rewrite(tmp_path / "step-00000020", "latest", b"global_step20\n")
    assert found.newest()[1] == []
    assert newest_step(found) == 20


def test_a_file_that_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    found = saved(tmp_path, 10)

    def write_more(folder: Path) -> None:
        write(folder)
        torch.save({"a": Canary(tmp_path / "sung")}, folder / "scaler.pt")

    with pytest.raises(RunStopped, match=r"scaler.pt cannot be read"):
        found.save(20, write_more, FACTS)
    assert newest_step(found) == 10


@pytest.mark.parametrize("text", [DEEP, '{"files": ' + DEEP + "}", "\ud800", "null", '{"files": [[]]}', "1" * 5000])
def test_a_manifest_of_any_content_is_skipped_and_does_not_stop_a_save(tmp_path: Path, text: str) -> None:
    found = saved(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "manifest.json").write_bytes(text.encode(errors="surrogatepass"))
    _, skipped = found.newest()
    assert newest_step(found) == 10
    assert skipped[0].startswith(f"{tmp_path / 'step-00000020'} was skipped: its manifest.json cannot be read (")
    found.save(20, write, FACTS)
    assert newest_step(found) == 20


def test_checkpoints_of_another_run_are_neither_read_nor_removed(tmp_path: Path) -> None:
    saved(tmp_path, 5, 25, owner="theirs")
    assert Checkpoints(tmp_path, "mine").last() == "there is no checkpoint yet"
    saved(tmp_path, 10, 20)
    mine = saved(tmp_path, 30, limit=2)
    assert names(tmp_path) == ["step-00000005", "step-00000020", "step-00000025", "step-00000030"]
    shutil.rmtree(tmp_path / "step-00000030")
    _, skipped = mine.newest()
    assert newest_step(mine) == 20
    assert skipped == [f"{tmp_path / 'step-00000025'} was skipped: it belongs to another run"]


def test_another_runs_checkpoint_of_the_same_step_is_not_written_over(tmp_path: Path) -> None:
    saved(tmp_path, 20, owner="theirs")
    with pytest.raises(
        RunStopped, match=r"step-00000020 could not be written .*another run .theirs. has written it"
    ) as caught:
        saved(tmp_path, 20)
    assert caught.value.exit_code == 74
    assert isinstance(read(tmp_path / "step-00000020", "theirs"), Checkpoint)


@pytest.mark.parametrize(("limit", "kept"), [(0, [40]), (1, [40]), (2, [30, 40]), (3, [20, 30, 40])])
def test_the_newest_are_kept(tmp_path: Path, limit: int, kept: list[int]) -> None:
    saved(tmp_path, 10, 20, 30, 40, limit=limit)
    assert names(tmp_path) == [f"step-{step:08d}" for step in kept]


def test_none_is_removed_before_the_newer_one_is_there(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    seen: list[list[str]] = []
    Checkpoints(tmp_path, "mine", 1).save(20, lambda folder: seen.append(names(tmp_path)), FACTS)
    assert seen == [[".step-00000020.partial", "step-00000010"]]
    assert names(tmp_path) == ["step-00000020"]


def test_an_older_one_stays_where_the_newer_one_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 5, 10)
    really = os.rename

    def lossy(source: Path, target: Path) -> None:
        really(source, target)
        os.truncate(target / "optimizer.pt", 3)

    monkeypatch.setattr(os, "rename", lossy)
    saved(tmp_path, 20, limit=1)
    monkeypatch.undo()
    assert (newest_step(Checkpoints(tmp_path, "mine")), names(tmp_path)[0]) == (10, "step-00000005")
    # nor does a damaged one count later on
    saved(tmp_path, 30, limit=2)
    assert names(tmp_path) == ["step-00000010", "step-00000020", "step-00000030"]


def test_a_whole_checkpoint_of_the_same_step_stays(tmp_path: Path) -> None:
    before = (saved(tmp_path, 10).folder / "step-00000010").stat().st_ino
    saved(tmp_path, 10)
    assert (names(tmp_path), (tmp_path / "step-00000010").stat().st_ino) == (["step-00000010"], before)


class Deadline:
    """Kills this process before the nth thing that it does to the disk, or after it with the file cut to half.

    Python's own audit events see every open for writing, mkdir, rename, unlink and rmdir, those of rmtree too; syncs
    and what the libraries write are wrapped.
    """

    def __init__(self, fatal: int) -> None:
        self.passed, self.fatal, self.asleep = 0, fatal, True

    def reach(self, torn: str | Path | None = None) -> None:
        if self.asleep:
            return
        self.passed += 1
        if self.passed == self.fatal:
            if torn is not None:
                os.truncate(torn, os.path.getsize(torn) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"):
            self.reach()

    def sync(self, handle: int, really: Callable[[int], None] = os.fsync) -> None:
        self.reach()
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if path.is_file():
            self.reach(torn=path)
        really(handle)

    def writer(self, really: Callable[[Any, Path], None]) -> Callable[[Any, Path], None]:
        def wrapped(content: Any, path: Path) -> None:
            self.reach()
            really(content, path)
            self.reach(torn=path)

        return wrapped

    def watch(self) -> None:
        sys.addaudithook(self.audit)  # for good: only a forked child may call this
        os.fsync = self.sync  # type: ignore[assignment]
        torch.save = self.writer(torch.save)  # type: ignore[assignment]
        safetensors.save_file = self.writer(safetensors.save_file)  # type: ignore[assignment]
        text = Path.write_text
        Path.write_text = lambda path, said: self.writer(lambda s, p: text(p, s))(said, path)  # type: ignore
        self.asleep = False


def in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Runs `work` in a forked process; returns its exit status, and its result as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        gc.disable()  # it would copy most of what the parent holds
        try:
            os.write(writer, str(work()).encode())
            os._exit(0)
        except BaseException as error:
            os.write(writer, repr(error).encode())
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def save_until(fatal: int, folder: Path, step: int, limit: int) -> int:
    deadline = Deadline(fatal)
    deadline.watch()
    Checkpoints(folder, "mine", limit).save(step, write, FACTS)
    deadline.asleep = True
    return deadline.passed


def kill_points(folder: Path, before: Path, step: int, limit: int) -> Iterator[int]:
    """Restores the folder and kills a save at one place after the other; the number of each, once it is killed."""
    shutil.copytree(before, folder)
    code, said = in_child(lambda: save_until(0, folder, step, limit))
    assert code == 0, said
    for fatal in range(1, int(said) + 1):
        shutil.rmtree(folder)
        shutil.copytree(before, folder)
        code, said = in_child(lambda fatal=fatal: save_until(fatal, folder, step, limit))
        assert code == -signal.SIGKILL, said
        yield fatal


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder whose syncs take no time, where there is one: a kill loses nothing that was written."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) as folder:
        yield Path(folder)


SITUATIONS: dict[str, tuple[list[int], int | None, int, list[int]]] = {  # steps, the damaged one, limit, steps left
    "the first": ([], None, 2, [30]),
    "one more": ([20], None, 2, [20, 30]),
    "an older one goes": ([10, 20], None, 2, [20, 30]),
    "the only other goes": ([20], None, 1, [30]),
    "over a damaged one": ([20, 30], 30, 2, [20, 30]),
    "over the only one": ([30], None, 1, [30]),
}


@pytest.mark.parametrize(
    "situation",
    [
        pytest.param(
            name, marks=[pytest.mark.slow] * (name in ("one more", "the only other goes", "over the only one"))
        )
        for name in SITUATIONS
    ],
)
def test_a_kill_at_any_write_leaves_the_former_checkpoint_or_the_new_one(memory: Path, situation: str) -> None:
    steps, damaged, limit, left = SITUATIONS[situation]
    before, folder = memory / "before", memory / "checkpoints"
    before.mkdir()
    saved(before, *steps)
    if damaged:
        os.truncate(before / f"step-{damaged:08d}" / "optimizer.pt", 7)
    former = max((step for step in steps if step != damaged), default=None)
    outcomes, points = set(), 0
    for points in kill_points(folder, before, 30, limit):
        found = Checkpoints(folder, "mine", limit)
        checkpoint, skipped = found.newest()
        outcomes.add(checkpoint.step if checkpoint else None)
        assert outcomes <= {former, 30}, (situation, points, skipped)
        if checkpoint:
            weight = safetensors.load_file(checkpoint.path / "model.safetensors")["weight"]
            assert torch.equal(weight, torch.arange(64, dtype=torch.float32))
            assert checkpoint.facts == FACTS
        found.save(30, write, FACTS)  # as the same command again does
        assert newest_step(found) == 30
        assert names(folder) == [f"step-{step:08d}" for step in left], (situation, points)
    print(f"{situation}: {points} kill points")
    assert points >= 12
    assert outcomes == {former, 30}


def mount(folder: Path, *options: str) -> None:
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, "-t", "tmpfs", "-o", "size=1m", "none")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_run_and_leaves_the_former_checkpoint(small_disk: Path) -> None:
    found = saved(small_disk / "checkpoints", 10)
    for size in (300_000, 150_000, 126_000):  # the first file meets the end of the disk, the second, a later one
        with pytest.raises(RunStopped) as caught:
            found.save(20, lambda folder, size=size: write(folder, size), FACTS, bytes_needed=500_000)
        said = str(caught.value)
        assert caught.value.exit_code == 74
        assert str(small_disk / "checkpoints" / "step-00000020") in said
        assert f"500,000 bytes needed; {shutil.disk_usage(small_disk).free:,} bytes free" in said
        assert newest_step(found) == 10
    found.save(20, write, FACTS)  # room again
    assert names(small_disk / "checkpoints") == ["step-00000010", "step-00000020"]


def test_a_disk_that_cannot_be_written_ends_the_run_and_leaves_the_former_checkpoint(small_disk: Path) -> None:
    found = saved(small_disk, 10)
    mount(small_disk, "-o", "remount,ro")
    with pytest.raises(RunStopped, match=r"step-00000020 could not be written .*Read-only file system") as caught:
        found.save(20, write, FACTS)
    assert caught.value.exit_code == 74
    assert newest_step(found) == 10


def test_a_file_that_may_grow_no_further_ends_the_run_and_leaves_the_former_checkpoint(tmp_path: Path) -> None:
    found = saved(tmp_path, 10)

    def limited() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            found.save(20, lambda folder: write(folder, 10_000), FACTS, bytes_needed=80_000)
        except RunStopped as error:
            return f"{error.exit_code} {error}"
        return "saved"

    code, said = in_child(limited)
    assert (code, said[:3]) == (0, "74 ")
    assert f"the checkpoint {tmp_path / 'step-00000020'} could not be written" in said
    assert re.search(r"about 80,000 bytes needed; [\d,]+ bytes free; the last checkpoint is of step 10 \(/", said)
    assert newest_step(found) == 10


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    found = saved(tmp_path, 10)
    with pytest.raises(RunStopped, match=r"the disk is full.*about 1,000,000,000,000,000,000 bytes needed") as caught:
        found.save(20, lambda folder: pytest.fail("it was written"), FACTS, bytes_needed=10**18)
    assert caught.value.exit_code == 74
    assert names(tmp_path) == ["step-00000010"]
