"""Commands on hosts, with a stand-in for ssh that runs them here; tests/hosts/ has real hosts."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE

from lmgym.errors import InputError
from lmgym.runs.hostfile import Host
from lmgym.runs.on_hosts import HostsRun, OnHost, run_on_hosts

SSH = """#!/bin/bash
echo "${@: -2:1} $*" >> "$SSH_LOG"
eval "${@: -1}"
"""
LAUNCHER = """#!/bin/bash
place=$(echo "$*" | sed -n 's/.*--node_rank \\([0-9]*\\).*/\\1/p')
trap 'echo stopped $place >> "$SSH_LOG"; exit 75' TERM
echo "launched $place with $SECRET_KEY in $PWD"
echo "launched $place" >> "$SSH_LOG"
if [ "$place" = "$FAILS" ]; then until grep -q "launched 0" "$SSH_LOG"; do sleep .05; done; exit 3; fi
if [ -n "$WAITS" ]; then for _ in $(seq 1200); do sleep .05; done; fi
"""
"""in place of Python: a launcher that ends at once, fails on one host, or waits for SIGTERM"""
VALUE = 'it\'s 2 $HOME `id` "quoted"'


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls and deeds of the stand-ins; they are first on PATH, and in place of this Python."""
    for name, text in {"ssh": SSH, "launcher": LAUNCHER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SSH_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "launcher"))
    return tmp_path / "log"


def hosts_run(folder: Path, port: int = 1, servers: tuple[Host, ...] = (), serve=(), **environment: str) -> HostsRun:
    hosts = [Host("a", 1), Host("b", 1)]
    return HostsRun(hosts, servers, ["x.py", "--note", "a b"], folder, port, environment, serve)


def test_both_hosts_run_with_the_environment_which_no_command_line_shows(log: Path, tmp_path: Path, capfd) -> None:
    assert run_on_hosts(hosts_run(tmp_path, SECRET_KEY=VALUE)) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == [f"{host}: launched {place} with {VALUE} in {tmp_path}" for place, host in enumerate("ab")]
    called = log.read_text()
    assert "ServerAliveInterval" in called
    assert "quoted" not in called


def test_one_that_fails_ends_the_other_and_gives_its_code(log: Path, tmp_path: Path, capfd) -> None:
    assert run_on_hosts(hosts_run(tmp_path, FAILS="1", WAITS="1")) == 3
    assert "b ended with 3: the other hosts are asked to stop" in capfd.readouterr().err
    assert "stopped 0" in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_stops_both(number: int, log: Path, tmp_path: Path) -> None:
    process = started(tmp_path)
    process.send_signal(number)
    assert process.wait(PATIENCE) == 75
    assert {"stopped 0", "stopped 1"} <= set(log.read_text().splitlines())


def test_under_nohup_a_closed_terminal_stops_nothing(log: Path, tmp_path: Path) -> None:
    process = started(tmp_path, "nohup")
    process.send_signal(signal.SIGHUP)
    time.sleep(1)  # more than it would take to stop
    assert "stopped" not in log.read_text()
    process.terminate()
    assert process.wait(PATIENCE) == 75


def started(folder: Path, *before: str) -> subprocess.Popen[str]:
    """A process that runs both hosts, once both have begun."""
    code = (
        "import signal, sys\nfrom pathlib import Path\nfrom lmgym.runs.hostfile import Host\n"
        # these tests may run under nohup themselves
        f"signal.signal(signal.SIGHUP, signal.{'SIG_IGN' if before else 'SIG_DFL'})\n"
        "from lmgym.runs.on_hosts import HostsRun, run_on_hosts\n"
        f"sys.executable = {sys.executable!r}\n"
        "hosts = [Host('a', 1), Host('b', 1)]\n"
        f"run = HostsRun(hosts, [], ['x.py'], Path({str(folder)!r}), 1, {{'WAITS': '1'}})\n"
        "sys.exit(run_on_hosts(run))"
    )
    python = Path(sys.prefix, "bin/python")
    process = subprocess.Popen([*before, python, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout
    for _ in "ab":
        assert "launched" in process.stdout.readline()
    return process


def test_a_starter_that_is_killed_leaves_nothing_running(log: Path, tmp_path: Path) -> None:
    one = OnHost(Host("a", 1), [sys.executable, "--node_rank", "0"], tmp_path, {"WAITS": "1"})
    one.stop()  # as where ssh loses its starter: standard input ends
    until = time.monotonic() + PATIENCE
    while one.ended is None:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert one.ended in (75, 143)  # 143: before the launcher had its trap


def test_the_run_waits_for_its_servers_and_ends_them(log: Path, tmp_path: Path, capfd) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = f"import http.server as h, time; time.sleep(1); h.test(h.SimpleHTTPRequestHandler, port={port})"
    serve = [str(Path(sys.prefix, "bin/python")), "-c", server]
    servers = (Host("127.0.0.1", 1),)
    assert run_on_hosts(hosts_run(tmp_path, port - 1, servers, serve)) == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)
    serve[-1] = "raise SystemExit('no model')"
    with pytest.raises(InputError, match=r"vLLM on 127\.0\.0\.1 ended; needed: an answer at its port"):
        run_on_hosts(hosts_run(tmp_path, port - 1, servers, serve))
    assert "127.0.0.1: no model" in capfd.readouterr().out


def test_a_folder_that_is_missing_is_said_by_the_host(log: Path, tmp_path: Path, capfd) -> None:
    assert run_on_hosts(hosts_run(tmp_path / "none")) == 2
    assert "none" in capfd.readouterr().out
