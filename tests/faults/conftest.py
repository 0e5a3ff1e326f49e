"""A model with dropout, and the launches that fault tests share."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faulting import command

Words = Callable[..., list]


@pytest.fixture(scope="session")
def dropping(small_models: dict[str, Path], tmp_path_factory) -> Path:
    """The small GPT-2, with dropout wherever it has any."""
    folder = tmp_path_factory.mktemp("dropping") / "gpt2"
    shutil.copytree(small_models["gpt2"], folder)
    config = json.loads((folder / "config.json").read_text())
    rates = {name: 0.1 for name in config if name.endswith("pdrop")}
    assert len(rates) == 3
    (folder / "config.json").write_text(json.dumps(config | rates))
    return folder


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MiB; skips if none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="session")
def few_held_out_pairs(held_out_pairs: Path, tmp_path_factory) -> Path:
    """11 of them: two ranks have not the same number."""
    path = tmp_path_factory.mktemp("few_held_out") / "held_out.jsonl"
    path.write_text("".join(held_out_pairs.read_text().splitlines(keepends=True)[:11]))
    return path


@pytest.fixture(scope="session")
def words(dropping: Path, few_pairs: Path, few_held_out_pairs: Path) -> Words:
    """The command of a user: `words(engine, output, **changes)`."""

    def make(engine: str, output: Path, **changes) -> list:
        values = {"model": dropping, "dropout": "true", "pairs": few_pairs, "held_out": few_held_out_pairs, **changes}
        return command(engine, output, **values)

    return make


def whole_runs(words: Words, tmp_path_factory, **environment: str) -> Callable[[str], Path]:
    """The folder of an uninterrupted run per engine, made when it is first asked for."""
    from launching import run

    done: dict[str, Path] = {}

    def get(engine: str) -> Path:
        if engine not in done:
            folder = tmp_path_factory.mktemp("whole") / engine
            ended = run(words(engine, folder), **environment)
            assert ended.returncode == 0, ended.stderr[-3000:]
            done[engine] = folder
        return done[engine]

    return get


@pytest.fixture(scope="session")
def uninterrupted(words: Words, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run per engine."""
    return whole_runs(words, tmp_path_factory)


@pytest.fixture(scope="module")
def whole(asked: Words, tmp_path_factory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run of PPO per engine, by a module's `asked`; its rewards draw random numbers."""
    return whole_runs(asked, tmp_path_factory, LMGYM_TEST_NOISY="1")
