"""The deadline of a start, by ranks in processes of their own that are late, broken or stuck."""

import re
import tempfile
from pathlib import Path

from launching import finish, launch, start
from patience import PATIENCE

RANK = """
import os, sys, time
from pathlib import Path
from lmgym.distributed.start_deadline import deadline
from lmgym.runs.launch import launch
def main():
    with deadline(int(os.environ["RANK"]), {ranks}, arrive={arrive}, connect={connect}) as connected:
        {inside}
    print("together", flush=True)
    mark = Path(__file__).with_suffix(".together")
    mark.touch()
    while os.environ["RANK"] == "0" and not mark.with_name("rank-1.together").exists():  # the store ends with rank 0
        time.sleep(.05)
launch(main)
"""


def end_of(
    ranks: int, *inside: str, first: int = 0, arrive: float = PATIENCE, connect: float = PATIENCE
) -> list[tuple[int, str]]:
    """(exit code, output) of ranks, from the first of them on, that run these lines within the deadline."""
    started = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "rank.py"
        command = launch("fork", script=script)  # with one port for all
        for rank, line in enumerate(inside, first):
            script = script.with_name(f"rank-{rank}.py")
            script.write_text(RANK.format(ranks=ranks, arrive=arrive, connect=connect, inside=line))
            place = {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            started.append(start([*command[:-1], script], **place))
        ended = [finish(one) for one in started]
    return [(one.returncode, one.stdout + one.stderr) for one in ended]


def test_ranks_that_arrive_and_connect_go_on() -> None:
    assert end_of(2, "time.sleep(1); connected()", "connected(); time.sleep(1)") == [(0, "together\n")] * 2


def test_ranks_that_do_not_arrive_are_named() -> None:
    [(code, said)] = end_of(3, "pass", arrive=1)
    assert code == 70
    assert "error: ranks 1, 2 of 3 did not arrive at 127.0.0.1:" in said
    assert "within 1 s" in said
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
    [(code, said)] = end_of(2, "pass", first=1, arrive=1, connect=1)
    assert code == 70
    assert re.search(r"did not reach rank 0 at 127\.0\.0\.1:\d+ \(", said)
