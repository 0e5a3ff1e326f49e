"""The package openenv, in an environment of its own: `make test-full` makes build/openenv, LMGYM_OPENENV names another.

It needs an older pillow than ours, so that it is not in the tests' own environment. In build/openenv the packages of
ours follow, so that lmgym runs there too. As a program this file makes it.
"""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from launching import ROOT
from patience import PATIENCE

from lmgym.distributed.ports import free_port

FOLDER = Path(os.environ.get("LMGYM_OPENENV") or ROOT / "build/openenv")
PYTHON = FOLDER / "bin/python"
needs_openenv = pytest.mark.skipif(not PYTHON.is_file(), reason=f"no {PYTHON}: make test-full makes it")


def make() -> None:
    """Makes the environment, unless it is there."""
    if (FOLDER / "bin/openenv").is_file():
        return
    subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
    own = sysconfig.get_path("purelib", vars={"base": str(FOLDER)})
    Path(own, "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    subprocess.run([str(PYTHON), "-m", "pip", "install", "--quiet", "openenv==0.10.0"], check=True)


def run_there(*words: object, cwd: Path = ROOT, text: str = "") -> str:
    """The output of a command of that environment."""
    return subprocess.run(
        [str(PYTHON), *map(str, words)],
        cwd=cwd,
        env=variables(),
        input=text,
        text=True,
        check=True,
        capture_output=True,
    ).stdout


@contextmanager
def server_there(words: Sequence[object], cwd: Path = ROOT, **more: str) -> Iterator[str]:
    """The address of a server of that environment, whose last word is its port, until the end of the `with`."""
    port = free_port()
    command = [str(PYTHON), *map(str, words), str(port)]
    process = subprocess.Popen(
        command, cwd=cwd, env=variables() | more, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield _ready(process, port)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def _ready(process: subprocess.Popen, port: int) -> str:
    import httpx

    url, until = f"http://127.0.0.1:{port}", time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return url
        except httpx.HTTPError:
            time.sleep(0.1)
    process.kill()
    raise AssertionError(process.communicate()[1])


def variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LMGYM_TOKEN": ""}


if __name__ == "__main__":
    make()
