"""Hosts on this machine: each has its own network, process ids, hostname, home, /etc/hosts, /dev/shm and sshd.

They share the file system. No namespace has a name, and a host's pid 1 dies with the process that made it, so nothing
stays behind however a test ends, and two test processes never meet.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, final

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NETWORK = "10.99.0"
NEEDED = {
    "ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux", "sshd": "openssh-server",
    "ssh": "openssh-client", "pdsh": "pdsh", "pkill": "procps",
}  # fmt: skip
NEEDED_BY_SLURM = {
    "slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge",
}  # fmt: skip
BOOT_SECONDS = 30.0
BOOT = """
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/passwd /etc/passwd
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mkdir /run/sshd
ip link set lo up
exec "$(command -v sshd)" -D -e -f {folder}/sshd_config
"""
SSHD = """
HostKey {keys}/host
AuthorizedKeysFile {home}/.ssh/authorized_keys
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
"""
SSH = """
StrictHostKeyChecking yes
LogLevel ERROR
"""


def reason_to_skip(slurm: bool = False) -> str:
    """The reason for which hosts cannot be made here; empty if there is none."""
    if os.geteuid() != 0:
        return "hosts in namespaces of their own need root"
    needed = NEEDED | (NEEDED_BY_SLURM if slurm else {})
    missing = sorted({package for name, package in needed.items() if not shutil.which(name, path=PATH)})
    if missing:
        return f"hosts need apt-get install --no-install-recommends {' '.join(missing)}"
    command = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    return f"namespaces cannot be made here: {done.stderr.strip()}" if done.returncode else ""


def wait_for(what: Callable[[], Any], seconds: float, name: str) -> Any:
    """Polls until something is there. Raises TimeoutError."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"{name}: not within {seconds:.0f} s")


def _dies_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def begin(command: Sequence[object], log: Path) -> subprocess.Popen:
    """Starts a process that dies with this one; its output is appended to a file."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_dies_with_parent,
            env=os.environ | {"PATH": PATH},
        )


def _ip(pid: int, *words: object) -> None:
    command = ["nsenter", "-t", pid, "-n", "ip", *words]
    subprocess.run([str(word) for word in command], check=True, env=os.environ | {"PATH": PATH})


@dataclass
class Started:
    """A command on a host; its output goes to files, so that it cannot fill a pipe."""

    process: subprocess.Popen
    stdout: IO[str]
    stderr: IO[str]

    def finish(self, seconds: float) -> subprocess.CompletedProcess[str]:
        """Waits for the end and reads the output. Raises TimeoutExpired, with the whole group killed."""
        try:
            self.process.wait(seconds)
        finally:
            self.kill()
            texts = []
            for file in (self.stdout, self.stderr):
                file.seek(0)
                texts.append(file.read())
                file.close()
        return subprocess.CompletedProcess(self.process.args, self.process.returncode, *texts)

    def kill(self) -> None:
        """Kills -9 the command and what it left in its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        """Its output until now, errors last."""
        texts = []
        for file in (self.stdout, self.stderr):
            texts.append(os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace"))
        return "".join(texts)


@final
class Host:
    """A host: `pid` is that of its pid 1, seen from outside, or 0 while it is off."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.number, self.address = name, number, f"{NETWORK}.{number}"
        self.folder, self.home = folder, folder / "home"
        self.pid = 0
        self._booted: subprocess.Popen | None = None

    @property
    def hosts_file(self) -> Path:
        """Its /etc/hosts; write to it in place."""
        return self.folder / "hosts"

    def boot(self, switch: int) -> None:
        """Turns it on and connects it to a switch. Raises TimeoutError if its sshd does not listen."""
        script = BOOT.format(name=self.name, folder=self.folder)
        spaces = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._booted = begin(["unshare", *spaces, "bash", "-ec", script], self.folder / "boot.log")
        children = Path(f"/proc/{self._booted.pid}/task/{self._booted.pid}/children")
        self.pid = int(wait_for(lambda: children.read_text().split(), BOOT_SECONDS, f"{self.name} boots")[0])
        sshd = f"/proc/{self.pid}/comm"
        wait_for(lambda: Path(sshd).read_text().strip() == "sshd", BOOT_SECONDS, f"{self.name} starts sshd")
        port = f"port{self.number}"
        if _link_exists(switch, port):  # connections that wait for an answer keep the former network for minutes
            _ip(switch, "link", "delete", port)
        card = f"02:00:00:00:00:0{self.number}"  # the same after each boot: others remember it for minutes
        _ip(self.pid, *("link", "add", "eth0", "address", card, "type", "veth", "peer", "name", port, "netns", switch))
        _ip(self.pid, "address", "add", f"{self.address}/24", "dev", "eth0")
        _ip(self.pid, "link", "set", "eth0", "up")
        _ip(switch, "link", "set", port, "master", "switch", "up")

    def kill(self) -> None:
        """Kills -9 its pid 1, and with it every process on it."""
        if self.pid and Path(f"/proc/{self.pid}").exists():
            os.kill(self.pid, signal.SIGKILL)
        if self._booted:
            self._booted.kill()
            self._booted.wait()
        self.pid, self._booted = 0, None

    def entered(self, command: Sequence[object]) -> list[str]:
        """The command line, outside, of a command on this host."""
        return [str(word) for word in ("nsenter", "-t", self.pid, "-n", "-u", "-i", "-m", "-p", "--", *command)]

    def start(self, command: Sequence[object], cwd: Path | str = "/", **environment: str) -> Started:
        """Starts a command in a process group of its own, in the environment of a login, with this Python on PATH."""
        stdout, stderr = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115  `finish` closes them
        process = subprocess.Popen(
            self.entered(["env", "-C", cwd, *command]),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=self.environment() | environment,
            start_new_session=True,
            preexec_fn=_dies_with_parent,
        )
        return Started(process, stdout, stderr)

    def run(
        self, command: Sequence[object], cwd: Path | str = "/", seconds: float = 60.0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end. Raises TimeoutExpired, with its group killed, after `seconds`."""
        return self.start(command, cwd, **environment).finish(seconds)

    def environment(self) -> dict[str, str]:
        """The environment of a login; what tests need on every host is in ~/.deepspeed_env and given to `start`."""
        return {
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            "HOME": str(self.home),
            "USER": "root",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
        }

    def processes(self, word: str) -> list[int]:
        """Process ids, seen from outside, of those on this host that have a word in their command line."""
        if not self.pid:
            return []
        own, found = os.readlink(f"/proc/{self.pid}/ns/pid"), []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(path / "ns/pid") == own and word in (path / "cmdline").read_text(errors="replace"):
                    found.append(int(path.name))
            except OSError:
                continue
        return sorted(found)


def _link_exists(pid: int, name: str) -> bool:
    command = ["nsenter", "-t", str(pid), "-n", "ip", "link", "show", name]
    return subprocess.run(command, capture_output=True, env=os.environ | {"PATH": PATH}).returncode == 0


@final
class Cluster:
    """Hosts node-a, node-b, ... at 10.99.0.1, 10.99.0.2, ..., each connected to one switch."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.hosts = [Host(f"node-{'abc'[i]}", i + 1, folder / f"node-{'abc'[i]}") for i in range(count)]
        self._switch: subprocess.Popen | None = None

    def __getitem__(self, index: int) -> Host:
        return self.hosts[index]

    def up(self) -> None:
        """Makes keys and the switch, and boots all hosts."""
        keys = self.folder / "keys"
        keys.mkdir()
        for name in ("host", "user"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)]
            subprocess.run(command, check=True)
        for host in self.hosts:
            self._prepare(host, keys)
        self._switch = begin(["unshare", "--net", "sleep", "infinity"], self.folder / "switch.log")
        own = os.readlink("/proc/self/ns/net")
        link = f"/proc/{self._switch.pid}/ns/net"
        wait_for(lambda: os.readlink(link) != own, BOOT_SECONDS, "the switch")
        _ip(self._switch.pid, "link", "add", "switch", "type", "bridge")
        _ip(self._switch.pid, "link", "set", "switch", "up")
        for host in self.hosts:
            self.boot(host)

    def _prepare(self, host: Host, keys: Path) -> None:
        ssh = host.home / ".ssh"
        ssh.mkdir(parents=True)
        names = ",".join([*(other.name for other in self.hosts), f"{NETWORK}.*"])
        (ssh / "known_hosts").write_text(f"{names} {(keys / 'host.pub').read_text()}")
        shutil.copy(keys / "user", ssh / "id_ed25519")
        shutil.copy(keys / "user.pub", ssh / "authorized_keys")
        (ssh / "config").write_text(SSH)
        (host.home / ".deepspeed_env").write_text("OMP_NUM_THREADS=1\nTOKENIZERS_PARALLELISM=false\nHF_HUB_OFFLINE=1\n")
        (host.folder / "sshd_config").write_text(SSHD.format(keys=keys, home=host.home))
        users = Path("/etc/passwd").read_text().splitlines()
        root = f"root:x:0:0:root:{host.home}:/bin/bash"
        lines = [root if line.startswith("root:") else line for line in users]
        (host.folder / "passwd").write_text("\n".join(lines) + "\n")
        host.hosts_file.write_text(self.hosts_text())

    def hosts_text(self) -> str:
        """The lines of /etc/hosts, as they should be."""
        return "127.0.0.1 localhost\n" + "".join(f"{host.address} {host.name}\n" for host in self.hosts)

    def boot(self, host: Host) -> None:
        """Turns a host on, and waits until it can be reached from the first one."""
        assert self._switch
        host.boot(self._switch.pid)
        if self.hosts[0].pid:
            reach = ["ssh", "-o", "ConnectTimeout=2", host.name, "true"]
            answers = lambda: self.hosts[0].run(reach).returncode == 0  # noqa: E731
            wait_for(answers, BOOT_SECONDS, f"ssh to {host.name}")

    def link(self, host: Host, up: bool) -> None:
        """Pulls the cable between a host and the switch, or puts it back."""
        assert self._switch
        _ip(self._switch.pid, "link", "set", f"port{host.number}", "up" if up else "down")

    def power_off(self, host: Host) -> None:
        """A power failure: as its cable carries nothing any more, the others are not told that its connections end."""
        self.link(host, up=False)
        host.kill()

    def restore(self) -> None:
        """As at the start: every host on and reachable, its link up, its /etc/hosts right, nothing of tests running."""
        for host in self.hosts:
            if not host.pid or not Path(f"/proc/{host.pid}").exists():
                host.kill()
                self.boot(host)
            self.link(host, up=True)
            host.hosts_file.write_text(self.hosts_text())
            for pid in host.processes(sys.executable):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue

    def hostfile(self) -> Path:
        """A hostfile of one slot a host."""
        path = self.folder / "hostfile"
        path.write_text("".join(f"{host.name} slots=1\n" for host in self.hosts))
        return path

    def down(self) -> None:
        """Turns everything off."""
        for host in self.hosts:
            host.kill()
        if self._switch:
            self._switch.kill()
            self._switch.wait()


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[Cluster]:
    """`count` hosts, up to three, within `with`; their files are in a folder that exists and is empty."""
    cluster = Cluster(folder, count)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
