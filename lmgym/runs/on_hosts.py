"""A run on several hosts over ssh: one launcher a host, started together and ended together.

Design decisions:
- Each host runs torchrun, or DeepSpeed's launcher of one host, without pdsh: there DeepSpeed shows tokens in the lists
  of processes, and on SIGTERM ends every run of this Python on all hosts (`pkill -f`).
- The environment goes through ssh's standard input, so that no secret is in a command line or a file.
- Standard input stays open. Where it ends (a signal here, a dead starter, a closed connection) the host's ranks get
  SIGTERM, so that the run saves a checkpoint and stops.
- ssh ends within a minute where a link is dead (ServerAlive), so that a queue or a loop can start the command again.
"""

import base64
import json
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import final

from lmgym.console import say
from lmgym.errors import INTERRUPTED, InputError
from lmgym.runs.forwarding import public, secret_names
from lmgym.runs.hostfile import Host
from lmgym.runs.launching import uses_deepspeed
from lmgym.runs.signals_to_ranks import PREFIX, signals_to

SSH = ("ssh", "-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=15", "-oServerAliveCountMax=4")
END_SECONDS = 180.0  # for a checkpoint, after which a host is no longer waited for
SERVER_SECONDS = 1800.0
POLL_SECONDS, PRINT_SECONDS = 0.2, 5.0
# the first lines of standard input are NAME=value, up to an empty one; what runs in the background has no other input
REMOTE = (
    'exec 3<&0; while IFS= read -r line <&3 && [ -n "$line" ]; do export "$line"; done; cd {folder} || exit 2; '
    "{command} </dev/null 3<&- & run=$!; {{ cat <&3; kill -TERM $run; }} >/dev/null 2>&1 & watch=$!; "
    "wait $run; status=$?; kill $watch 2>/dev/null; exit $status"
)

PRINTING = threading.Lock()


@dataclass(frozen=True)
class HostsRun:
    """An experiment on hosts. The first one has rank 0, and its address is the meeting point of all."""

    hosts: Sequence[Host]
    """those that train"""
    servers: Sequence[Host]
    """those that run vLLM"""
    script: Sequence[str]
    """the experiment's file and its flags"""
    folder: Path
    """the working folder on every host"""
    port: int
    environment: Mapping[str, str]
    serve: Sequence[str] = ()
    """`lmgym engine serve` with its arguments"""

    def commands(self) -> list[tuple[Host, list[str]]]:
        """Each host with its command, servers first."""
        return [(host, list(self.serve)) for host in self.servers] + [
            (host, self._command(place)) for place, host in enumerate(self.hosts)
        ]

    def _command(self, place: int) -> list[str]:
        meeting = ["--master_addr", self.hosts[0].address, "--master_port", str(self.port)]
        if uses_deepspeed(self.script):
            world = json.dumps({host.name: list(range(host.slots)) for host in self.hosts}, separators=(",", ":"))
            info = base64.urlsafe_b64encode(world.encode()).decode()
            python = [sys.executable, "-u", "-m", "deepspeed.launcher.launch"]
            settings = [f"--world_info={info}", "--node_rank", str(place), *meeting]
        else:
            python = [sys.executable, "-m", "torch.distributed.run"]
            counts = ["--nnodes", str(len(self.hosts)), "--nproc_per_node", str(self.hosts[place].slots)]
            settings = [*counts, "--node_rank", str(place), *meeting]
        return [*python, *settings, *self.script]


def folded(command: Sequence[str]) -> list[str]:
    """A shell command on lines of one flag each, so that none is cut where it is printed."""
    lines = [""]
    for word in command:
        if word.startswith("--") or word.endswith(".py"):
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {shlex.quote(word)}" if lines[-1] else shlex.quote(word)
    return lines


def show_commands(run: HostsRun) -> None:
    """Prints what each host runs, as lines of a shell; secrets by their names."""
    secrets = secret_names(run.environment)
    for host, command in run.commands():
        say(f"# on {host.name}")
        say(f"cd {shlex.quote(str(run.folder))}")
        for name, value in public(run.environment).items():
            say(f"export {name}={shlex.quote(value)}")
        if secrets:
            say(f"# and export {', '.join(secrets)}")
        for line in folded(command):
            say(line)
        say()


def remote_command(command: Sequence[str], folder: Path) -> str:
    """The command line that a host's shell gets: the launcher, and what ends it (`REMOTE`)."""
    script = REMOTE.format(folder=shlex.quote(str(folder)), command=shlex.join(command))
    return f"exec sh -c {shlex.quote(script)}"


@final
class OnHost:
    """A command on a host, whose output is printed with the host's name. `ended` is its exit code, None until then."""

    def __init__(self, host: Host, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.host, self.stopped = host, False
        self._process = subprocess.Popen(
            [*SSH, host.name, remote_command(command, folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal is this process's, which ends all hosts in order
        )
        self._printer = threading.Thread(target=self._print, daemon=True)
        self._printer.start()
        lines = [f"{name}={value}\n" for name, value in environment.items()]
        self._send("".join([*lines, "\n"]))

    def _print(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with PRINTING:  # the text of a line and its end are two writes
                say(f"{self.host.name}: {line.decode(errors='replace').rstrip()}")

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # ssh has ended, and its exit code says why
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()

    @property
    def ended(self) -> int | None:
        """The exit code; ssh's own 255 where there was no connection, or no longer."""
        return self._process.poll()

    def stop(self) -> None:
        """Ends standard input, which is SIGTERM for the launcher on the host."""
        if not self.stopped:
            self.stopped = True
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()

    def close(self) -> None:
        """Ends ssh, if it still runs, after the last lines of its output are printed."""
        if self.ended is None:
            self._process.kill()
        self._process.wait()
        self._printer.join(PRINT_SECONDS)


@final
class Requests:
    """Counts signals that ask to stop."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int, frame: FrameType | None) -> None:
        """The handler of a signal."""
        self.count += 1


def run_on_hosts(run: HostsRun) -> int:
    """Runs the commands of all hosts, and returns the run's exit code: 0 if every host that trains ended with 0.

    Where one fails, the others are asked to stop, and it is that one's code; after a signal it is 75. A second signal
    ends at once. Raises InputError if a server does not start.
    """
    started: list[OnHost] = []
    requests = Requests()
    with signals_to(requests.add):
        try:
            for host, command in run.commands():
                if len(started) == len(run.servers):
                    _await_servers(started, run.port + 1, requests)
                if requests.count:
                    return INTERRUPTED
                words = command if len(started) < len(run.servers) else [*PREFIX, *command]
                started.append(OnHost(host, words, run.folder, run.environment))
            return _await_end(started[: len(run.servers)], started[len(run.servers) :], requests)
        finally:
            for one in started:
                one.stop()
            _wait(started, requests, 1)
            for one in started:
                one.close()


def _await_servers(servers: Sequence[OnHost], port: int, requests: Requests) -> None:
    """Waits until every server answers. Raises InputError if one ends, or does not answer in half an hour."""
    until = time.monotonic() + SERVER_SECONDS
    for server in servers:
        while not requests.count and not _answers(server.host.address, port):
            if server.ended is not None or time.monotonic() > until:
                found = f"vLLM on {server.host.name} {'ended' if server.ended is not None else 'does not answer'}"
                raise InputError(f"{found}; needed: an answer at its port {port}; its lines above may say why")
            time.sleep(1)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False


def _await_end(servers: Sequence[OnHost], trainers: Sequence[OnHost], requests: Requests) -> int:
    while not requests.count:
        if failed := next((one for one in [*servers, *trainers] if one.ended), None):
            say(f"{failed.host.name} ended with {failed.ended}: the other hosts are asked to stop", error=True)
            break
        if all(one.ended == 0 for one in trainers):
            return 0
        if gone := next((one for one in servers if one.ended == 0), None):
            say(f"vLLM on {gone.host.name} has ended: the run is asked to stop", error=True)
            break
        time.sleep(POLL_SECONDS)
    if requests.count:
        say("all hosts are asked to stop, after a checkpoint; a second signal ends at once", error=True)
    code = next((one.ended for one in [*servers, *trainers] if one.ended), None)
    for one in trainers:
        one.stop()
    _wait(trainers, requests, 1)
    if all(one.ended == 0 for one in trainers):  # the run ended before it heard of it
        return code or 0
    return code or INTERRUPTED


def _wait(some: Sequence[OnHost], requests: Requests, signals: int) -> None:
    """Waits until all have ended, for at most END_SECONDS or until there are more signals than `signals`."""
    until = time.monotonic() + END_SECONDS
    while any(one.ended is None for one in some) and time.monotonic() < until and requests.count <= signals:
        time.sleep(POLL_SECONDS)
