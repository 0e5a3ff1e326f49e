"""The hosts themselves: apart from each other and from this machine, and gone with the process that made them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from machines import Cluster, reason_to_skip, wait_for
from patience import PATIENCE

pytestmark = pytest.mark.slow
TRY = ["ssh", "-oConnectTimeout=2", "node-b"]
MAKE = """
import sys, time
from pathlib import Path
from machines import hosts
with hosts(Path(sys.argv[1]), 2) as cluster:
    print(*(host.pid for host in cluster.hosts), cluster[0].start(["sleep", "3600"]).process.pid, flush=True)
    time.sleep(3600)
"""


def test_a_host_has_its_own_name_network_processes_and_shared_memory(two_hosts: Cluster) -> None:
    say = "hostname; cat /proc/sys/kernel/hostname; ip -4 -br address show eth0; ps ax | wc -l; echo ~; ls /dev/shm"
    first, second = (host.run(["ssh", host.name, say]).stdout.split() for host in two_hosts.hosts)
    assert first[:2] == ["node-a", "node-a"]
    assert second[:2] == ["node-b", "node-b"]
    assert "10.99.0.1/24" in first
    assert "10.99.0.2/24" in second
    assert first[-1] == str(two_hosts[0].home)
    assert socket.gethostname() not in ("node-a", "node-b")
    two_hosts[0].run(["touch", "/dev/shm/mine"])
    assert two_hosts[1].run(["ls", "/dev/shm"]).stdout == ""
    assert not Path("/dev/shm/mine").exists()


def test_a_link_and_a_host_can_fail_and_come_back(two_hosts: Cluster) -> None:
    answers = lambda: two_hosts[0].run([*TRY, "hostname"]).stdout == "node-b\n"  # noqa: E731
    assert answers()
    two_hosts.link(two_hosts[1], up=False)
    assert not answers()
    two_hosts.link(two_hosts[1], up=True)
    wait_for(answers, PATIENCE, "node-b")
    sleeping = two_hosts[1].start(["sleep", "3600"])
    two_hosts.power_off(two_hosts[1])
    assert sleeping.finish(PATIENCE).returncode != 0
    assert not answers()
    two_hosts.boot(two_hosts[1])
    assert answers()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_hosts_end_with_the_process_that_made_them(number: int, tmp_path: Path) -> None:
    if reason := reason_to_skip():
        pytest.skip(reason)
    command = [sys.executable, "-c", MAKE, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    made = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert made.stdout
    pids = made.stdout.readline().split()
    assert len(pids) == 3, pids
    made.send_signal(number)
    made.communicate(timeout=PATIENCE)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), PATIENCE, "their end")
