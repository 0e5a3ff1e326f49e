"""Hosts and Slurm for these tests; they skip themselves, with the reason, where hosts cannot be made."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from machines import Cluster, hosts, reason_to_skip
from slurm import Slurm, slurm_on


@pytest.fixture(scope="session")
def two(tmp_path_factory) -> Iterator[Cluster]:
    """node-a and node-b, made once a session; tests take `two_hosts`."""
    if reason := reason_to_skip():
        pytest.skip(reason)
    with hosts(tmp_path_factory.mktemp("hosts"), 2) as cluster:
        yield cluster


@pytest.fixture
def two_hosts(two: Cluster) -> Iterator[Cluster]:
    """node-a and node-b; on, reachable and idle before and after a test."""
    two.restore()
    yield two
    two.restore()


@pytest.fixture
def slurm(two_hosts: Cluster, tmp_path: Path) -> Iterator[Slurm]:
    """Slurm on node-a and node-b, its queue empty."""
    if reason := reason_to_skip(slurm=True):
        pytest.skip(reason)
    (tmp_path / "slurm").mkdir()
    with slurm_on(two_hosts, tmp_path / "slurm") as slurm:
        yield slurm


@pytest.fixture
def slurm_of_three(tmp_path_factory) -> Iterator[Slurm]:
    """Slurm on node-a, node-b and node-c."""
    if reason := reason_to_skip(slurm=True):
        pytest.skip(reason)
    with (
        hosts(tmp_path_factory.mktemp("hosts"), 3) as cluster,
        slurm_on(cluster, tmp_path_factory.mktemp("s")) as slurm,
    ):
        yield slurm


@pytest.fixture
def timed(record_property) -> Callable[[str], AbstractContextManager[None]]:
    """Notes the seconds of a fault, for the table in docs/many_nodes.md: `with timed(fault)`; -s prints them."""

    @contextmanager
    def measure(fault: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        record_property(fault, f"{seconds:.1f}")
        print(f"\n{fault}: {seconds:.1f} s")

    return measure
