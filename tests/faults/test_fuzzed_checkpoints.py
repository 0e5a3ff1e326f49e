"""A checkpoint with randomly damaged files is skipped with a reason of one line, and the one before it is used."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lmgym.console import printed_line
from lmgym.runs.checkpoint_files import MANIFEST, Checkpoint
from lmgym.runs.checkpoints import Checkpoints

SEED = 0
QUICK, ALL = 80, 400
DAMAGE = ("flip", "cut", "grow", "remove", "zeros", "swap", "hostile", "deep", "folder", "link", "text", "add")
FACTS = {"ranks": 1, "settings": {"learning_rate": 0.001, "model": "gpt2"}}


class Hostile:
    """Executes a command as its pickle is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def write(folder: Path) -> None:
    """Writes the files of a training loop."""
    save_file({"weight": torch.arange(64, dtype=torch.float32)}, folder / "model.safetensors")
    torch.save({"moment": torch.ones(64)}, folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 10, "epoch": 0.5}\n')
    torch.save({"random": {}, "sums": {}}, folder / "rank-00000.pt")


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """A folder of two whole checkpoints."""
    folder = tmp_path_factory.mktemp("two")
    for step in (10, 20):
        Checkpoints(folder, "mine", 9).save(step, write, FACTS)
    return folder


def damage(rng: random.Random, newest: Path, trap: Path) -> str:
    """Does something to the files of a checkpoint; in words. `trap` is what a hostile pickle would make."""
    file = rng.choice(sorted(path for path in newest.iterdir() if path.is_file()))
    data = bytearray(file.read_bytes())
    place = rng.randrange(len(data))
    what = rng.choice(
        ("flip", "cut", "grow", "remove", "zeros", "swap", "hostile", "deep", "folder", "link", "text", "add")
    )
    if what == "flip":
        data[place] ^= 1 << rng.randrange(8)
    elif what == "cut":
        data = data[:place]
    elif what == "grow":
        data += bytes(rng.randbytes(rng.randint(1, 99)))
    elif what == "zeros":
        data = bytearray(len(data))
    elif what == "deep":
        data = bytearray(b"[" * 100_000)
    elif what == "text":
        data = bytearray(rng.choice((b"", b"{}", b"null", b"\xff\xfe", b'{"files": 3}', b"NaN", b"\x1b[2J")))
    if what in ("remove", "folder", "link"):
        file.unlink()
        if what == "folder":
            file.mkdir()
        elif what == "link":
            file.symlink_to("/nowhere")
    elif what == "swap":
        other = rng.choice(sorted(path for path in newest.iterdir() if path.is_file() and path != file))
        file.write_bytes(other.read_bytes())
    elif what == "hostile":
        torch.save({"state": Hostile(trap)}, newest / "optimizer.pt")
    elif what == "add":
        (newest / rng.choice(("more.pt", "\x1b[2J.json", "x" * 200))).write_bytes(b"x")
    else:
        file.write_bytes(data)
    if rng.random() < 0.3:  # by somebody who makes the manifest agree
        _agree(newest)
        return f"{what} in {file.name}, and the manifest agrees"
    return f"{what} in {file.name}"


def _agree(newest: Path) -> None:
    """Writes sizes and hashes of the files as they are now into the manifest, where that can still be read."""
    import hashlib

    try:
        manifest = json.loads((newest / MANIFEST).read_text())
        for entry in manifest["files"]:
            data = (newest / entry["path"]).read_bytes()
            entry |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (newest / MANIFEST).write_text(json.dumps(manifest))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return


def check(number: int, two: Path, tmp_path: Path) -> None:
    rng = random.Random(f"checkpoints {SEED} {number}")
    folder, trap = tmp_path / "checkpoints", tmp_path / "trap"
    shutil.copytree(two, folder, symlinks=True)
    newest = folder / "step-00000020"
    done = damage(rng, newest, trap)
    found, skipped = Checkpoints(folder, "mine", 9).newest()
    assert not trap.exists(), (number, done, "a pickle was executed")
    assert isinstance(found, Checkpoint), (number, done)
    if found.step == 20:  # nothing of it can be told from what was written
        state = torch.load(newest / "optimizer.pt", weights_only=True)
        assert isinstance(state, dict), (number, done)
        assert skipped == []
        return
    assert (found.step, len(skipped)) == (10, 1), (number, done)
    assert "\n" not in skipped[0], (number, done, skipped[0])
    assert printed_line(skipped[0]).isprintable(), (number, done, skipped[0])
    assert len(skipped[0]) < 1000, (number, done)


@pytest.mark.parametrize("first", range(0, QUICK, 40))
def test_a_damaged_checkpoint_is_skipped_in_one_line(first: int, two: Path, tmp_path: Path) -> None:
    for number in range(first, first + 40):
        check(number, two, tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, ALL, 40))
def test_more_damaged_checkpoints_are_skipped(first: int, two: Path, tmp_path: Path) -> None:
    for number in range(first, first + 40):
        check(number, two, tmp_path / str(number))
