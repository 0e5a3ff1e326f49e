"""The deadline of a start, by ranks in processes of their own that are late, broken or stuck."""

import subprocess
import sys
from pathlib import Path

from launching import free_port
from patience import PATIENCE

ROOT = Path(__file__).parents[3]
RANK = """
import os, sys, time
from lmgym.distributed.start_deadline import deadline
from lmgym.runs.launch import launch
def main():
    with deadline(int(os.environ["RANK"]), {ranks}, arrive={arrive}, connect={connect}) as connected:
        {inside}
    print("together", flush=True)
launch(main)
"""


def end_of(ranks: int, *inside: str, arrive: float = PATIENCE, connect: float = PATIENCE) -> list[tuple[int, str]]:
    """(exit code, output) of ranks that run these lines within the deadline."""
    port = str(free_port())
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    started = []
    for rank, line in enumerate(inside):
        code = RANK.format(ranks=ranks, arrive=arrive, connect=connect, inside=line)
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
    return [(one.returncode, out) for one in started for out in [one.communicate(timeout=PATIENCE)[0]]]


def test_ranks_that_arrive_and_connect_go_on() -> None:
    assert end_of(2, "time.sleep(1); connected()", "connected(); time.sleep(1)") == [(0, "together\n")] * 2


def test_ranks_that_do_not_arrive_are_named() -> None:
    [(code, said)] = end_of(3, "pass", arrive=3)
    assert code == 70
    assert "error: ranks 1, 2 of 3 did not arrive at 127.0.0.1:" in said
    assert "within 3 s" in said
    assert "together" not in said


def test_the_error_of_a_rank_ends_the_others_without_the_deadline() -> None:
    """Rank 0 and that rank name it and its error, and say what to do."""
    waits = "time.sleep(3600)"
    first, failed, third = end_of(3, waits, "raise RuntimeError('connectFullMesh failed')", waits)
    assert third == (70, "")
    for code, said in (first, failed):
        assert code == 70
        assert "rank 1 of 3 (" in said
        assert "could not connect with the others (connectFullMesh failed); needed: " in said
        assert "GLOO_SOCKET_IFNAME=eth0" in said
        assert "Traceback" not in said


def test_a_rank_that_is_stuck_in_a_library_is_ended_and_named() -> None:
    [(first, said), (second, other)] = end_of(2, "connected(); time.sleep(3600)", "time.sleep(3600)", connect=2)
    assert (first, second) == (70, 70)
    assert "not connected 2 s after all have arrived: rank 1 of 2 (" in said + other
    assert "rank 0" not in said + other


def test_where_rank_0_fails_the_others_hear_of_it_too() -> None:
    first, second = end_of(2, "raise RuntimeError('no device')", "time.sleep(3600)")
    assert first[0] == second[0] == 70
    assert "rank 0 of 2 (" in first[1]
    assert "could not connect with the others (no device)" in first[1]
    assert second[1] == ""


def test_a_rank_without_the_first_says_where_it_looked() -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PATH": "/usr/bin:/bin"}
    code = RANK.format(ranks=2, arrive=3, connect=3, inside="pass")
    ranks = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment | ranks, capture_output=True, text=True)
    assert done.returncode == 70
    assert f"did not reach rank 0 at 127.0.0.1:{environment['MASTER_PORT']} (" in done.stderr
