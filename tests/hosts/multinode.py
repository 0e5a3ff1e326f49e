"""Launches on several hosts as docs/many_nodes.md has them, one rank a host, and the ends of their runs."""

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faulting import TRAIN, steps
from launching import BIN, ROOT, flags
from machines import Cluster, Host, Started, wait_for
from patience import PATIENCE

PORT = 29500  # every host has a network of its own
KEEP_ALIVE = {"PDSH_SSH_ARGS_APPEND": "-oServerAliveInterval=15 -oServerAliveCountMax=4"}
OURS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def by_hostfile(cluster: Cluster, script: Path, arguments: Sequence[object]) -> list[object]:
    """The documented `deepspeed --hostfile`, typed on the first host."""
    to = ["--hostfile", cluster.hostfile(), "--master_addr", cluster[0].name, "--master_port", PORT]
    return [BIN / "deepspeed", *to, script, *arguments]


def by_torchrun(cluster: Cluster, script: Path, arguments: Sequence[object]) -> list[object]:
    """The documented torchrun, to be typed on every host."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{cluster[0].name}:{PORT}", "--rdzv-id", "lmgym"]
    return [BIN / "torchrun", "--nnodes", len(cluster.hosts), "--nproc_per_node", 1, *meeting, script, *arguments]


@dataclass
class Launch:
    """A launch on all hosts: one launcher, or one on each host."""

    cluster: Cluster
    launchers: list[Started]
    script: Path

    def rank(self, host: Host) -> int:
        """Process id, from outside, of the rank on a host; 0 while there is none."""
        found = []
        for pid in host.processes(self.script.name):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if Path(words[0]).name.startswith("python") and any(word.endswith(self.script.name) for word in words[1:3]):
                found.append(pid)
        return min(found, default=0)  # data workers are forks of it

    def wait_for_step(self, folder: Path, step: int) -> None:
        """Returns once there is a checkpoint of that step or a later one."""
        wait_for(lambda: (steps(folder) or [0])[-1] >= step or self.ended(), PATIENCE, f"checkpoint {step}")
        assert (steps(folder) or [0])[-1] >= step, self.said()

    def ended(self) -> bool:
        """True if a launcher has ended."""
        return any(launcher.process.poll() is not None for launcher in self.launchers)

    def said(self) -> str:
        """The end of what the launchers have printed."""
        return "\n".join(launcher.said()[-6000:] for launcher in self.launchers)

    def finish(self, seconds: float = PATIENCE) -> tuple[list[int], str]:
        """The launchers' exit codes and everything that they have printed. Raises TimeoutExpired."""
        done = [launcher.finish(seconds) for launcher in self.launchers]
        return [one.returncode for one in done], "\n".join(one.stdout + one.stderr for one in done)


def begin(kind: str, cluster: Cluster, script: Path, arguments: Sequence[object], **environment: str) -> Launch:
    """Starts "deepspeed" by a hostfile, or "torchrun" on every host; the environment reaches every rank."""
    if kind == "deepspeed":
        lines = "".join(f"{name}={value}\n" for name, value in (OURS | environment).items())
        (cluster[0].home / ".deepspeed_env").write_text(lines)
        command = by_hostfile(cluster, script, arguments)
        return Launch(cluster, [cluster[0].start(command, ROOT, **KEEP_ALIVE)], script)
    command = by_torchrun(cluster, script, arguments)
    return Launch(cluster, [host.start(command, ROOT, **OURS, **environment) for host in cluster.hosts], script)


def run(kind: str, cluster: Cluster, script: Path, arguments: Sequence[object], **environment: str) -> str:
    """Runs a launch to its end; what it printed. Raises AssertionError if a launcher fails."""
    codes, said = begin(kind, cluster, script, arguments, **environment).finish()
    assert set(codes) == {0}, said[-6000:]
    return said


def noisy(output: Path, model: Path, pairs: Path, held_out: Path, config: str = "zero2", **changes) -> list[object]:
    """The flags of tests/faults/noisy_experiment.py."""
    values = {"deepspeed": ROOT / "configs" / f"{config}.json", "model": model, "dataset": pairs}
    return flags(**{**values, "eval_dataset": held_out, "output": output, **TRAIN, **changes})


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """A signal to a process of a host."""
    assert pid
    os.kill(pid, number)


def page_batch(file: Path, script: Path, words: Sequence[object]) -> Path:
    """The batch file of docs/many_nodes.md for one CPU rank a host, with another script and its flags."""
    block = re.search(r"```sbatch\n(.*?)```", (ROOT / "docs/many_nodes.md").read_text(), re.DOTALL)
    assert block
    text = re.sub(r"(#SBATCH --(gpus|cpus)-per|export SRUN_CPUS).*\n", "", block[1])
    text = text.replace("--nproc_per_node 8", "--nproc_per_node 1").replace("hh_pairwise.%j.log", f"{file}.%j.log")
    command = " ".join(str(word) for word in ["   ", script, *words, "&\n"])
    text, found = re.subn(r"    reward_models/experiments/hh_pairwise\.py .*?&\n", command, text, flags=re.DOTALL)
    assert found == 1
    file.write_text(text)
    return file
