"""A rank that is gone: the other ranks end with one line, not with their library's traceback."""

import json
import os
import signal
import sys
import time
from pathlib import Path


def lose(folder: str) -> None:
    """One of two ranks: the second is killed while the first waits for it."""
    import torch

    from lmgym.distributed.ranks import rank, start_distributed, sum_over_ranks
    from lmgym.runs.launch import launch as launch_stage
    from lmgym.runs.run import Run

    def train() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the launcher sends, and a supervised run outlives
        start_distributed(False)
        with Run.start(folder, {}, seed=0, tracking="none", is_main=rank() == 0):
            sum_over_ranks(torch.ones(1))
            if rank() == 1:
                if code := os.environ.get("LMGYM_TEST_CODE"):
                    torch.distributed.destroy_process_group()
                    time.sleep(2)  # as a process takes that ends with its libraries
                    os._exit(int(code))
                os.kill(os.getpid(), signal.SIGKILL)
            sum_over_ranks(torch.ones(1))

    launch_stage(train)


def test_a_run_that_loses_a_rank_ends_with_one_line(tmp_path: Path) -> None:
    from launching import launch, run

    done = run(launch("forks", tmp_path, script=Path(__file__)))
    assert done.returncode, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: the connection to another rank is lost (")
    assert line.endswith("; the same command goes on from its last checkpoint, if it has one")
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("failed", 1)


def test_a_launcher_sees_the_code_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    from launching import launch, run

    done = run(launch("deepspeed", tmp_path, script=Path(__file__)), LMGYM_TEST_CODE="65")
    assert done.returncode == 65, done.stderr


if __name__ == "__main__":
    lose(sys.argv[-1])  # behind what a launcher adds
