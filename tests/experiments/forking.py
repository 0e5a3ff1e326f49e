"""Launches as forks of one process that has imported the libraries: an import takes most of the seconds of a launch.

`fork` in a test's process is not safe once torch has made threads there, so a server of its own forks: it answers
a request with the process id, then with the exit code. Each fork is a process like one that Python started: a
session of its own, its own output, environment, folder and random numbers.
"""

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

GRACE = 30.0
"""seconds that the other ranks have to end once one has failed"""
RANK = "rank "
"""with its number: the name of its process"""
MESSAGE = 1 << 20
"""bytes of the longest one"""


class Forked:
    """A process that the server forked; as far as tests ask, a `subprocess.Popen`."""

    _server: socket.socket | None = None
    _process: subprocess.Popen | None = None
    _ended: dict[int, int] = {}  # noqa: RUF012  of all forks

    def __init__(
        self, command: Sequence[str], ranks: int, cwd: Path, env: Mapping[str, str], stdout: IO[str], stderr: IO[str],
        stdin: IO[str] | None = None,
    ) -> None:  # fmt: skip
        """`ranks`: 0 for a process without a launcher's variables. `command`: a script, "-" for that of `stdin`."""
        if Forked._server is None:
            Forked._server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                number = theirs.fileno()
                # the libraries of this process, wherever the first command looks for its own
                own = {name: value for name, value in env.items() if name != "PYTHONPATH"}
                own |= {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}
                Forked._process = subprocess.Popen([sys.executable, __file__, str(number)], env=own, pass_fds=[number])
        streams = (stdout, stderr, *([stdin] if stdin else []))
        files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in streams]
        request = {"command": command, "ranks": ranks, "cwd": str(cwd), "env": dict(env), "files": files}
        Forked._server.send(json.dumps(request).encode())
        self.args, self.returncode, self.pid = command, None, 0
        while not self.pid:
            self.pid = self._read().get("pid", 0)

    def _read(self) -> dict[str, int]:
        assert self._server is not None
        answer = json.loads(self._server.recv(MESSAGE) or b'{"died": 1}')
        assert "died" not in answer, "the server that forks has died"
        if "ended" in answer:
            self._ended[answer["ended"]] = answer["code"]
        else:
            self._ended.pop(answer["pid"], None)  # an earlier process may have had the same number
        return answer

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        while self.pid not in self._ended and select.select([self._server], [], [], 0)[0]:
            self._read()
        self.returncode = self._ended.get(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end. Raises TimeoutExpired."""
        until = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            time.sleep(0.02)
        return code

    def ranks(self) -> dict[int, int]:
        """Process ids by rank; where there was no launcher, its own is of rank 0."""
        found: dict[int, int] = {}
        for process in psutil.Process(self.pid).children(True):
            with contextlib.suppress(psutil.Error):
                if (name := process.name()).startswith(RANK):  # data workers too, but they come later
                    found.setdefault(int(name.removeprefix(RANK)), process.pid)
        return found or {0: self.pid}

    def kill(self) -> None:
        """kill -9."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def serve(asked: socket.socket) -> list[str]:
    """Forks on request until nobody can ask. Returns in each fork, with the command that it is to become."""
    running: set[int] = set()
    while True:
        if select.select([asked], [], [], 0.02 if running else None)[0]:
            if not (message := asked.recv(MESSAGE)):
                sys.exit()
            if (child := os.fork()) == 0:
                asked.close()
                return _become(**json.loads(message))
            running.add(child)
            asked.send(json.dumps({"pid": child}).encode())
        for child in [*running]:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                running.remove(child)
                asked.send(json.dumps({"ended": child, "code": os.waitstatus_to_exitcode(status)}).encode())


def _become(command: list[str], ranks: int, cwd: str, env: dict[str, str], files: list[str]) -> list[str]:
    """Makes this fork the process that was asked for, or the launcher of its ranks."""
    os.setsid()
    for number, path in zip((1, 2, 0), files, strict=False):  # without a third one, standard input is empty
        handle = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if os.isatty(number):  # line by line, and what was a file of the server is now one without places
            setattr(sys, name, open(number, "w", buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if ranks:
        _fork_ranks(ranks)
    import numpy as np

    random.seed()  # a state that a test's program forgets to keep must not be the same in every fork
    np.random.seed()
    return command


def _fork_ranks(ranks: int) -> None:
    """Returns in each rank, with the variables that a launcher sets; ends with the code of the first that fails."""
    os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    children: set[int] = set()
    for rank in range(ranks):
        if (child := os.fork()) == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            Path("/proc/self/comm").write_text(f"{RANK}{rank}")
            return
        children.add(child)
    code, until = 0, None
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        children.discard(pid)
        if pid and status and not code:
            code, until = os.waitstatus_to_exitcode(status), time.monotonic() + GRACE
            _signal(children, signal.SIGTERM)
        if until and time.monotonic() > until:
            _signal(children, signal.SIGKILL)
        time.sleep(0.02)
    os._exit(code % 256)


def _signal(children: set[int], number: int) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _run(script: str) -> None:
    """As Python runs and ends a script, but for taking the libraries to pieces, which takes half a second."""
    code = None
    try:
        runpy.run_path("/dev/stdin" if script == "-" else script, run_name="__main__")
    except SystemExit as ended:
        code = ended.code
        if not isinstance(code, int | None):
            raise
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit((code or 0) % 256)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1] / "faults")
    from forked import import_libraries

    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nowhere, number)
    import_libraries()
    import deepspeed.runtime.zero.muon.original_muon  # noqa: F401  which imports torch's compiler

    with contextlib.suppress(ImportError):  # of the extra `serve`
        import lmgym.apps.serve.app
        import lmgym.apps.serve.chat_app  # noqa: F401

    gc.freeze()
    script, *arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).parent)
    _run(script)
