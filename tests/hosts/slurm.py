"""Slurm on hosts of this machine: slurmctld on the first, slurmd on each, one munged."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

from machines import Cluster, Host, Started, begin, wait_for

READY_SECONDS = 60.0
CONFIG = """
ClusterName=lgym
SlurmctldHost=node-a
SlurmUser=root
SlurmdUser=root
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdTimeout=10
SlurmctldTimeout=10
InactiveLimit=0
KillWait=30
JobRequeue=1
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
NodeName={names} CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
CGROUP = """
CgroupPlugin=cgroup/v1
CgroupAutomount=yes
"""


@final
class Slurm:
    """A running Slurm; its files are in `folder`."""

    def __init__(self, cluster: Cluster, folder: Path, cpus: int = 2) -> None:
        self.cluster, self.folder = cluster, folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[Started | subprocess.Popen] = []
        names = ",".join(host.name for host in cluster.hosts)
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, names=names, cpus=cpus))
        (folder / "cgroup.conf").write_text(CGROUP)

    def up(self) -> None:
        """Starts all daemons and waits for the nodes. Raises TimeoutError."""
        (self.folder / "munge.key").write_bytes(bytes(range(128)))
        (self.folder / "munge.key").chmod(0o600)
        munge = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munge.pid", "seed-file": "munge.seed"}
        options = [f"--{name}={self.folder / file}" for name, file in munge.items()]
        log = f"--log-file={self.folder / 'munged.log'}"
        self._daemons.append(begin(["munged", "--foreground", "--force", *options, log], self.folder / "munged.out"))
        wait_for((self.folder / "munge.sock").exists, READY_SECONDS, "munged")
        first = self.cluster[0]
        self._daemons.append(first.start(["slurmctld", "-D", "-i"], **self.environment))
        for host in self.cluster.hosts:
            self.start_daemon(host)
        self.wait_for_nodes()

    def start_daemon(self, host: Host) -> None:
        """Starts slurmd, as the boot of a host does."""
        self._daemons.append(host.start(["slurmd", "-D", "-N", host.name], **self.environment))

    def wait_for_nodes(self, seconds: float = READY_SECONDS) -> None:
        """Waits until every node is idle. Raises TimeoutError."""

        def idle() -> bool:
            states = self.ask("sinfo", "-h", "-N", "-o", "%T").split()
            return len(states) == len(self.cluster.hosts) and set(states) == {"idle"}

        wait_for(idle, seconds, "idle nodes")

    def ask(self, *words: object) -> str:
        """The output of a command of Slurm on the first host."""
        return self.cluster[0].run(words, **self.environment).stdout.strip()

    def submit(self, file: Path, *words: object, cwd: Path, **environment: str) -> str:
        """The id of a job: `sbatch`, as a user types it on the first host. Raises AssertionError if it is refused."""
        done = self.cluster[0].run(["sbatch", *words, file], cwd, **self.environment, **environment)
        found = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert found, done.stderr
        return found[1]

    def state(self, job: str) -> str:
        """A job's state, such as RUNNING or COMPLETED."""
        found = re.search(r"JobState=(\w+)", self.ask("scontrol", "show", "job", job))
        return found[1] if found else ""

    def wait_for_state(self, job: str, *states: str, seconds: float) -> str:
        """Waits for one of some states. Raises TimeoutError, and at once for a job that has failed instead."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            if time.monotonic() > until or state == "FAILED":
                raise TimeoutError(f"job {job} is {state}, not {states}")
            time.sleep(0.3)
        return state

    def start_now(self, job: str) -> None:
        """Lets a job that was requeued begin without the two minutes that Slurm waits.

        Within the second of its requeue its nodes would refuse it: they have revoked its credentials up to then.
        """
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds")

    def clear(self) -> None:
        """Cancels every job, and waits for the nodes."""
        self.ask("scancel", "--user=root")
        self.wait_for_nodes()

    def down(self) -> None:
        """Ends all daemons."""
        for daemon in reversed(self._daemons):
            daemon.kill()


@contextmanager
def slurm_on(cluster: Cluster, folder: Path) -> Iterator[Slurm]:
    """Slurm on all hosts of a cluster within `with`; its files are in a folder that exists and is empty."""
    slurm = Slurm(cluster, folder)
    try:
        slurm.up()
        yield slurm
    finally:
        slurm.down()
