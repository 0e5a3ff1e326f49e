"""Joining the ranks."""

import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from lmgym.distributed.ports import free_port
from lmgym.distributed.ranks import start_distributed
from lmgym.errors import InputError


def test_a_rank_that_may_open_few_files_more_is_refused_before_torch_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    most = psutil.Process().num_fds() + 8
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, 4096))
    with pytest.raises(InputError, match=f"more files are open than the {most:,} that this process may have"):
        start_distributed(use_deepspeed=True)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another run listens."""
    with socket.socket() as other:
        port = free_port()
        other.bind(("", port))
        other.listen()
        yield port


def started(ranks: int, port: int) -> subprocess.CompletedProcess[str]:
    """Rank 0 of so many, launched at a port."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks), "MASTER_PORT": str(port)}
    line = (
        "from lmgym.runs.launch import launch; from lmgym.distributed.ranks import start_distributed as start; "
        "launch(lambda: (start(use_deepspeed=True, stall_timeout=30), print('started')))"
    )
    words = [sys.executable, "-c", line]
    return subprocess.run(words, env=os.environ | place | {"MASTER_ADDR": "127.0.0.1"}, capture_output=True, text=True)


def test_a_port_in_use_is_said_in_a_line_where_ranks_meet(taken: int) -> None:
    done = started(2, taken)
    assert done.returncode == 70
    assert re.search(
        rf"^error: rank 0 cannot listen at 127\.0\.0\.1:{taken} .*; needed: a free port", done.stderr, re.M
    )
    assert "Traceback" not in done.stderr


def test_one_rank_starts_beside_another_run_of_deepspeeds_launcher(taken: int) -> None:
    done = started(1, taken)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
