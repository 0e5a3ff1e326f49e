"""A port at which ranks meet."""

import random
import socket
from pathlib import Path

import pytest

from lmgym.distributed import ports
from lmgym.distributed.ports import OUTGOING, free_port


def test_it_is_none_that_an_outgoing_connection_may_be_given_meanwhile() -> None:
    first, last = map(int, OUTGOING.read_text().split())
    assert not {free_port() for _ in range(50)} & set(range(first, last + 1))


def test_runs_with_the_same_seed_take_different_ports() -> None:
    found = set()
    for _ in range(20):
        random.seed(0)
        found.add(free_port())
    assert len(found) > 10


@pytest.mark.parametrize("outgoing", ["10001 65535", "1024 65535"])
def test_a_taken_port_is_left_out_and_a_machine_without_such_ports_gives_another(
    outgoing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(outgoing)
    monkeypatch.setattr(ports, "OUTGOING", tmp_path / "range")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 10_000))
        assert free_port() > 10_000
