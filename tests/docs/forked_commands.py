"""Commands of a shell script as forks: stand-ins of Python and of the console scripts ask this process for them.

A stand-in hands over its own three streams, arguments, folder and environment, and ends as the fork does. What is asked
of Python by `-c` or `-m` is done by Python.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from forking import MESSAGE, Forked

SCRIPTS = ("lmgym", "playpen", "clem")
STAND_IN = """#!{python} -IS
import json, os, signal, socket, sys
script = {script!r}
if not script and (len(sys.argv) < 2 or sys.argv[1] != "-" and sys.argv[1].startswith("-")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect({address!r})
words = [script, *sys.argv[1:]] if script else sys.argv[1:]
request = {{"words": words, "folder": os.getcwd(), "environment": dict(os.environ)}}
socket.send_fds(asked, [json.dumps(request).encode()], [0, 1, 2])
code = int(asked.recv(100))
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@dataclass
class Running:
    """A fork, the stand-in that waits for it, and its streams, which the fork opens a moment after it has begun."""

    fork: Forked
    asked: socket.socket
    streams: ExitStack


class ForkedCommands:
    """Within it `bin` is a folder for PATH, and `run` runs a shell script whose commands are found there."""

    def __enter__(self) -> "ForkedCommands":
        self._closed = ExitStack()
        self.bin = Path(self._closed.enter_context(tempfile.TemporaryDirectory(prefix="forked-")))
        address = str(self.bin / "socket")
        self._socket = self._closed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._socket.bind(address)
        self._socket.listen()
        self._socket.settimeout(0.01)
        python = sys.executable
        paths = {name: str(Path(python).parent / name) for name in SCRIPTS} | {"python": "", "python3": ""}
        for name, script in paths.items():
            (self.bin / name).write_text(STAND_IN.format(python=python, script=script, address=address))
            (self.bin / name).chmod(0o755)
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.close()

    def run(
        self, command: Sequence[str], folder: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run`. Raises TimeoutExpired, with all that it started killed."""
        until, running, started = time.monotonic() + timeout, [], []
        with tempfile.TemporaryFile("a+") as stdout, tempfile.TemporaryFile("a+") as stderr:
            shell = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                start_new_session=True,
            )  # fmt: skip
            started.append(shell)
            try:
                while shell.poll() is None:
                    if time.monotonic() > until:
                        raise subprocess.TimeoutExpired(list(command), timeout)
                    if one := self._accept():
                        running.append(one)
                        started.append(one.fork)
                    running = [one for one in running if not _has_ended(one)]
            finally:
                for process in started:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                for one in running:
                    one.streams.close()
            texts = [(file.seek(0), file.read())[1] for file in (stdout, stderr)]
        return subprocess.CompletedProcess(command, shell.returncode, *texts)

    def _accept(self) -> Running | None:
        try:
            asked, _ = self._socket.accept()
        except TimeoutError:
            return None
        asked.settimeout(None)
        message, handles, _, _ = socket.recv_fds(asked, MESSAGE, 3)
        request, streams = json.loads(message), ExitStack()
        stdin, stdout, stderr = (
            streams.enter_context(os.fdopen(handle, mode)) for handle, mode in zip(handles, "rww", strict=True)
        )
        fork = Forked(request["words"], 0, Path(request["folder"]), request["environment"], stdout, stderr, stdin)
        streams.enter_context(asked)
        return Running(fork, asked, streams)


def _has_ended(one: Running) -> bool:
    """Tells the stand-in of a fork that has ended."""
    if (code := one.fork.poll()) is None:
        return False
    one.asked.send(str(code).encode())
    one.streams.close()
    return True
