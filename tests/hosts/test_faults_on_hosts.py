"""Faults of two hosts, each with the end of the launch and what the same command again makes of it.

docs/many_nodes.md has the seconds that each took.
"""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faulting import SCRIPT, digest, measured, outcome
from launching import ROOT
from machines import Cluster, wait_for
from multinode import OURS, begin, kill, noisy, run
from patience import PATIENCE

pytestmark = pytest.mark.slow
SLOWLY = {"LMGYM_TEST_SLEEP": "0.2"}
Arguments = Callable[..., list]


@pytest.fixture(scope="module")
def arguments(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path) -> Arguments:
    """The flags of a run: `arguments(folder, **changes)`."""
    given = (small_models["llama"], few_pairs, held_out_pairs)
    return lambda folder, **changes: noisy(folder, *given, **changes)


@pytest.fixture(scope="module")
def whole(two: Cluster, arguments: Arguments, tmp_path_factory) -> Path:
    """The folder of the run without a fault, by the hostfile."""
    folder = tmp_path_factory.mktemp("whole")
    two.restore()
    run("deepspeed", two, SCRIPT, arguments(folder))
    return folder


def assert_resumes_as_whole(two: Cluster, arguments: Arguments, folder: Path, whole: Path) -> None:
    assert outcome(folder)[0] != "finished"
    said = run("deepspeed", two, SCRIPT, arguments(folder))
    assert "resuming from" in said
    assert digest(folder) == digest(whole)
    assert measured(folder) == measured(whole)


def resume_as_offered(two: Cluster, folder: Path) -> str:
    """Types the command that `lmgym runs` offers on the first host; what it printed."""
    listed = two[0].run(["lmgym", "runs", "--json", folder], ROOT)
    command = json.loads(listed.stdout)["resume_command"]
    assert "node-a slots=1" in command, command
    done = two[0].run(["bash", "-c", command], ROOT, PATIENCE, **OURS)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_remote_rank_that_is_killed_ends_the_launch(
    two_hosts: Cluster, arguments: Arguments, whole: Path, tmp_path: Path, timed
) -> None:
    launch = begin("deepspeed", two_hosts, SCRIPT, arguments(tmp_path), **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    with timed("kill -9 of the remote rank"):
        kill(launch.rank(two_hosts[1]))
        codes, _ = launch.finish()
    assert codes != [0]
    assert outcome(tmp_path)[0] != "finished"
    said = resume_as_offered(two_hosts, tmp_path)
    assert "resuming from" in said
    assert digest(tmp_path) == digest(whole)
    assert measured(tmp_path) == measured(whole)


def test_a_terminated_launcher_leaves_a_checkpoint(
    two_hosts: Cluster, arguments: Arguments, whole: Path, tmp_path: Path, timed
) -> None:
    launch = begin("deepspeed", two_hosts, SCRIPT, arguments(tmp_path), **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    runner = min(two_hosts[0].processes("bin/deepspeed"))
    with timed("SIGTERM to deepspeed"):
        kill(runner, signal.SIGTERM)
        launch.finish()
        wait_for(lambda: outcome(tmp_path)[1] is not None, PATIENCE, "the outcome")
    assert outcome(tmp_path) == ("interrupted", 75)
    assert_resumes_as_whole(two_hosts, arguments, tmp_path, whole)


def test_without_its_ssh_session_a_run_finishes(
    two_hosts: Cluster, arguments: Arguments, whole: Path, tmp_path: Path, timed
) -> None:
    launch = begin("deepspeed", two_hosts, SCRIPT, arguments(tmp_path), **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    with timed("ssh session killed"):
        kill(two_hosts[1].processes("sshd: root@notty")[0])
        codes, _ = launch.finish()
    assert codes == [255]
    assert outcome(tmp_path) == ("finished", 0)
    assert digest(tmp_path) == digest(whole)


@pytest.mark.parametrize("kind", ["deepspeed", "torchrun"])
def test_a_dead_link_ends_the_ranks_and_their_launcher(
    kind: str, two_hosts: Cluster, arguments: Arguments, whole: Path, tmp_path: Path, timed
) -> None:
    changes = {"stall_timeout": 20}
    launch = begin(kind, two_hosts, SCRIPT, arguments(tmp_path, **changes), **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    with timed(f"link down, --stall_timeout 20, {kind}"):
        two_hosts.link(two_hosts[1], up=False)
        launch.launchers[0].process.wait(PATIENCE)
    two_hosts.link(two_hosts[1], up=True)  # for which the torchrun that was cut off waits
    codes, said = launch.finish()
    assert 0 not in codes
    assert "(--stall_timeout 20)" in said
    assert outcome(tmp_path) == ("stalled", 70)
    two_hosts.restore()
    said = run(kind, two_hosts, SCRIPT, arguments(tmp_path, **changes))
    assert "resuming from" in said
    assert digest(tmp_path) == digest(whole)


@pytest.mark.parametrize("kind", ["deepspeed", "torchrun"])
def test_a_name_that_leads_to_its_own_host_ends_the_start_with_the_cause(
    kind: str, two_hosts: Cluster, arguments: Arguments, tmp_path: Path, timed
) -> None:
    for host in two_hosts.hosts:  # as Debian's installer writes it; with one such host gloo connects every other time
        host.hosts_file.write_text(two_hosts.hosts_text().replace(f"{host.address} ", "127.0.1.1 "))
    with timed(f"127.0.1.1 node-b in /etc/hosts, {kind}"):
        codes, said = begin(kind, two_hosts, SCRIPT, arguments(tmp_path)).finish()
    assert 0 not in codes
    assert re.search(r"rank . of 2 \(node-.\) could not connect", said), said
    assert "node-a to 127.0.1.1, node-b to 127.0.1.1 in /etc/hosts" in said
    assert "GLOO_SOCKET_IFNAME" in said
    run(kind, two_hosts, SCRIPT, arguments(tmp_path), GLOO_SOCKET_IFNAME="eth0")
    assert outcome(tmp_path) == ("finished", 0)


def test_a_rank_that_never_starts_is_named(two_hosts: Cluster, arguments: Arguments, tmp_path: Path, timed) -> None:
    elsewhere = ["--hostfile", two_hosts.hostfile(), "--no_ssh", "--node_rank", 0, "--master_addr", "node-a"]
    command = ["deepspeed", *elsewhere, SCRIPT, *arguments(tmp_path, stall_timeout=10)]
    with timed("a rank that never starts, --stall_timeout 10"):
        done = two_hosts[0].run(command, ROOT, PATIENCE)
    assert done.returncode == 70
    assert "rank 1 of 2 did not arrive at node-a:29500 within 10 s" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_usr1_and_usr2_to_the_ranks_leave_a_checkpoint(
    number: int, two_hosts: Cluster, arguments: Arguments, whole: Path, tmp_path: Path, timed
) -> None:
    launch = begin("torchrun", two_hosts, SCRIPT, arguments(tmp_path), **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    with timed(f"{signal.Signals(number).name} to the ranks"):
        kill(launch.rank(two_hosts[1]), number)
        codes, said = launch.finish()
    assert 0 not in codes
    assert f"{signal.Signals(number).name}: stopped after update" in said
    assert outcome(tmp_path) == ("interrupted", 75)
    assert_resumes_as_whole(two_hosts, arguments, tmp_path, whole)
