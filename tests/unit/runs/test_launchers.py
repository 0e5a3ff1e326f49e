"""The launch of a rank, as its launchers' own processes tell it."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

ROOT = Path(__file__).parents[3]
SAY = """
import json
from lmgym.runs.launchers import describe_launch, local_ranks
print(json.dumps([describe_launch(), local_ranks()]))
"""


def described(folder: Path, name: str, *words: str, **environment: str) -> tuple[dict, int, list[str]]:
    """(the launch and the ranks here that a rank finds below a launcher of that name, that launcher's command)."""
    (folder / "rank.py").write_text(SAY)
    (folder / name).write_text(
        f"import os, subprocess\nsubprocess.run([{sys.executable!r}, {str(folder / 'rank.py')!r}], check=True)\n"
    )
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "LOCAL_RANK": "0", "WORLD_SIZE": "3", **environment}
    command = [sys.executable, str(folder / name), *words]
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=PATIENCE, check=True)
    return (*json.loads(done.stdout), command)


def test_the_command_of_torchrun_is_found_as_it_was_typed(tmp_path: Path) -> None:
    found, ranks, command = described(tmp_path, "torchrun", "--nnodes", "2", "x.py", "--name", "two words")
    assert (found, ranks) == ({"command": command}, 3)


def test_the_hosts_of_deepspeed_are_found_too(tmp_path: Path) -> None:
    world = base64.urlsafe_b64encode(json.dumps({"node-a": [0, 1], "node-b": [0]}).encode()).decode()
    found, ranks, command = described(tmp_path, "deepspeed", f"--world_info={world}", "x.py", LOCAL_SIZE="2")
    assert (found, ranks) == ({"command": command, "hosts": {"node-a": 2, "node-b": 1}}, 2)
    found, _, _ = described(tmp_path, "deepspeed", "--world_info=%%%", "x.py")
    assert "hosts" not in found


def test_the_command_of_lmgym_launch_stands_before_that_of_its_launchers(tmp_path: Path) -> None:
    typed = "lmgym launch --slurm --nodes 2 train reward 'two words'"
    found, ranks, _ = described(tmp_path, "torchrun", LMGYM_LAUNCH=typed, SLURM_JOB_ID="12", LOCAL_WORLD_SIZE="1")
    assert found == {"command": [*typed.split()[:-2], "two words"], "slurm_job": "12"}
    assert ranks == 1


def test_a_process_without_a_launcher_has_no_launch(tmp_path: Path) -> None:
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "12"}
    done = subprocess.run([sys.executable, "-c", SAY], env=known, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{}, 1]
