"""`lmgym launch` on two hosts: over ssh by a hostfile, as a job of Slurm, and --dry_run on nodes that differ."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulting import SCRIPT, TRAIN, UPDATES, digest, measured, outcome, steps
from launching import ROOT, flags
from machines import Cluster, Host, wait_for
from multinode import Launch, kill
from patience import PATIENCE
from slurm import Slurm

pytestmark = pytest.mark.slow
SLOWLY = {"LMGYM_TEST_SLEEP": "0.2"}
KEY = {"HF_TOKEN": "hf_notarealtoken12345"}
LIBRARIES = Path(pytest.__file__).parents[1]


@pytest.fixture(scope="module")
def given(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path) -> dict[str, object]:
    """The flags of a run, but for its output."""
    return {"model": small_models["llama"], "dataset": few_pairs, "eval_dataset": held_out_pairs, **TRAIN}


def command(cluster: Cluster, values: dict[str, object], folder: Path, *options: object, config: str = "") -> list:
    """`lmgym launch --hostfile`, typed on the first host."""
    deepspeed = {"deepspeed": config} if config else {}
    words = flags(**values, **deepspeed, output=folder)
    return ["lmgym", "launch", "--hostfile", cluster.hostfile(), *options, SCRIPT, *words]


def begin(cluster: Cluster, words: Sequence[object], cwd: Path, **environment: str) -> Launch:
    return Launch(cluster, [cluster[0].start(words, cwd, **environment)], SCRIPT)


@pytest.fixture(scope="module", params=["zero2", ""], ids=["deepspeed", "torchrun"])
def whole(two: Cluster, given: dict, tmp_path_factory, request) -> tuple[str, Path]:
    """A configuration and the folder of its run on both hosts, without a fault."""
    folder = tmp_path_factory.mktemp("whole")
    two.restore()
    code, said = begin(two, command(two, given, folder, "--submit", config=request.param), folder, **KEY).finish()
    assert code == [0], said[-6000:]
    assert KEY["HF_TOKEN"] not in said
    assert re.search(r"^node-a: .*ZeRO 2" if request.param else r"^node-a: ", said, re.MULTILINE), said
    return request.param, folder


def variables(host: Host, pid: int) -> dict[str, str]:
    words = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def test_ranks_on_both_hosts_have_the_environment_and_no_command_line_has_a_key(
    whole: tuple[str, Path], two_hosts: Cluster, given: dict, tmp_path: Path
) -> None:
    words = command(two_hosts, given, tmp_path, "--submit", config=whole[0])
    launch = begin(two_hosts, words, tmp_path, NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES="7", **KEY, **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    for host in two_hosts.hosts:
        found = variables(host, launch.rank(host))
        assert found["HF_TOKEN"] == KEY["HF_TOKEN"]
        assert (found["NCCL_DEBUG"], found["OMP_NUM_THREADS"]) == ("WARN", "1")  # the second by ~/.deepspeed_env
        assert found["LMGYM_LAUNCH"].startswith("lmgym launch --hostfile ")
        assert found.get("CUDA_VISIBLE_DEVICES") != "7"  # each host has its own; DeepSpeed sets it by the slots
        assert not host.processes(KEY["HF_TOKEN"])
    launch.finish()


@pytest.mark.parametrize(
    ("whole", "number"), [("zero2", signal.SIGINT), ("", signal.SIGTERM), ("", signal.SIGKILL)], indirect=["whole"]
)
def test_a_signal_to_the_command_ends_both_hosts_with_a_checkpoint(
    number: int, whole: tuple[str, Path], two_hosts: Cluster, given: dict, tmp_path: Path, timed
) -> None:
    words = command(two_hosts, given, tmp_path, "--submit", config=whole[0])
    launch = begin(two_hosts, words, tmp_path, **SLOWLY)
    launch.wait_for_step(tmp_path, 4)
    with timed(f"{signal.Signals(number).name} to lmgym launch, {whole[0] or 'torchrun'}"):
        starter = min(two_hosts[0].processes("bin/lmgym"))
        subprocess.run(["kill", f"-{int(number)}", str(starter)], check=True)
        codes, said = launch.finish()
        idle = lambda: not any(host.processes(SCRIPT.name) for host in two_hosts.hosts)  # noqa: E731
        wait_for(idle, PATIENCE, "the end of all processes")
    assert codes != [0]
    assert outcome(tmp_path) == ("interrupted", 75), said
    assert steps(tmp_path)[-1] < UPDATES
    codes, said = begin(two_hosts, words, tmp_path).finish()
    assert codes == [0], said
    assert "resuming from" in said
    assert digest(tmp_path) == digest(whole[1])
    assert measured(tmp_path) == measured(whole[1])


@pytest.mark.parametrize("whole", ["zero2"], indirect=True)
def test_a_rank_that_is_killed_ends_all_hosts_and_a_dead_link_ends_the_command(
    whole: tuple[str, Path], two_hosts: Cluster, given: dict, tmp_path: Path, timed
) -> None:
    words = command(two_hosts, given | {"stall_timeout": 20}, tmp_path, "--submit", config=whole[0])
    launch = begin(two_hosts, words, tmp_path, **SLOWLY)
    launch.wait_for_step(tmp_path, 2)
    with timed(f"kill -9 of a remote rank under lmgym launch, {whole[0] or 'torchrun'}"):
        kill(launch.rank(two_hosts[1]))
        codes, said = launch.finish()
    assert codes != [0]
    assert "the other hosts are asked to stop" in said
    launch = begin(two_hosts, words, tmp_path, **SLOWLY)
    launch.wait_for_step(tmp_path, 6)
    with timed(f"link down under lmgym launch, {whole[0] or 'torchrun'}"):
        two_hosts.link(two_hosts[1], up=False)
        codes, said = launch.finish()
    assert codes != [0]
    two_hosts.restore()
    codes, said = begin(two_hosts, words, tmp_path).finish()
    assert codes == [0], said
    assert "resuming from" in said
    assert digest(tmp_path) == digest(whole[1])


# --- --dry_run


@contextmanager
def over(host: Host, path: Path, other: Path) -> Iterator[None]:
    """On one host, another file or folder in the place of a path."""
    assert host.run(["mount", "--bind", other, path]).returncode == 0
    try:
        yield
    finally:
        assert host.run(["umount", path]).returncode == 0


def check(cluster: Cluster, given: dict, cwd: Path, *options: object, **changes: object) -> tuple[int, str]:
    done = cluster[0].run(command(cluster, given | changes, cwd / "run", "--dry_run", *options), cwd, seconds=PATIENCE)
    assert not (cwd / "run").exists()
    return done.returncode, done.stdout + done.stderr


def test_equal_hosts_agree(two_hosts: Cluster, given: dict, tmp_path: Path) -> None:
    code, said = check(two_hosts, given, tmp_path)
    assert code == 0, said
    assert "2 node(s) agree" in said
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert re.search(rf"^commit +{head[:12]} +2 of 2$", said, re.MULTILINE), said


def other_commit(folder: Path) -> None:
    folder.mkdir()
    git = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "other"], check=True)


def test_each_difference_is_a_line_with_the_node_and_both_values(
    two_hosts: Cluster, given: dict, small_models: dict[str, Path], tmp_path: Path
) -> None:
    node_b = two_hosts[1]
    other_commit(tmp_path / "other")
    with over(node_b, ROOT / ".git", tmp_path / "other/.git"):
        code, said = check(two_hosts, given, tmp_path)
    assert code == 2
    assert re.search(r"^  commit differs: node-a \w{12}, node-b \w{12}$", said, re.MULTILINE), said

    metadata = next(LIBRARIES.glob("click-*.dist-info"))
    shutil.copytree(metadata, tmp_path / metadata.name)
    file = tmp_path / metadata.name / "METADATA"
    file.write_text(re.sub(r"(?m)^Version: .*$", "Version: 8.0.1", file.read_text()))
    with over(node_b, metadata, tmp_path / metadata.name):
        code, said = check(two_hosts, given, tmp_path)
    assert code == 2
    assert re.search(r"^  packages/click differs: node-a [\d.]+, node-b 8\.0\.1$", said, re.MULTILINE), said

    model = small_models["llama"]
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1  # of equal size
    (tmp_path / "weights").write_bytes(weights)
    with over(node_b, model / "model.safetensors", tmp_path / "weights"):
        code, said = check(two_hosts, given, tmp_path)
    assert code == 2
    assert re.search(r"^  model/model.safetensors differs: node-a \d+ bytes, \w+, node-b \d+ bytes, \w+$", said, re.M)
    assert "error: 1 difference on 2 node(s)" in said


def test_missing_paths_are_one_line_each(two_hosts: Cluster, given: dict, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").mkdir()
    shutil.copy(given["dataset"], tmp_path / "data/pairs.jsonl")
    with over(two_hosts[1], tmp_path / "data", tmp_path / "empty"):
        code, said = check(two_hosts, given, tmp_path, dataset=tmp_path / "data/pairs.jsonl")
    assert code == 2
    assert re.search(r"^  dataset differs: node-a \d+ bytes, \w+, node-b missing$", said, re.MULTILINE), said
    with over(two_hosts[1], ROOT / ".venv", tmp_path / "empty"):
        code, said = check(two_hosts, given, tmp_path)
    assert code == 2
    assert re.search(r"^  python differs: node-a .*bin/python3?, node-b missing$", said, re.MULTILINE), said
    assert "packages/" not in said.partition("error:")[2]  # the environment is missing, not twenty packages


def test_nodes_that_cannot_be_reached_or_do_not_know_their_address(
    two_hosts: Cluster, given: dict, tmp_path: Path
) -> None:
    two_hosts.link(two_hosts[1], up=False)
    code, said = check(two_hosts, given, tmp_path)
    assert code == 2
    assert re.search(r"^  node-b: gave no answer: ssh: connect to host node-b", said, re.MULTILINE), said
    two_hosts.restore()
    two_hosts[1].hosts_file.write_text(two_hosts.hosts_text().replace("10.99.0.2 ", "127.0.1.1 "))
    code, said = check(two_hosts, given, tmp_path)
    assert code == 2
    assert re.search(r"^  node-b: its own name node-b is 127\.0\.1\.1, so that others cannot", said, re.M), said
    two_hosts.restore()
    listening = two_hosts[0].start(["python", "-m", "http.server", 23456])
    wait_for(lambda: two_hosts[0].run(["bash", "-c", "</dev/tcp/node-a/23456"]).returncode == 0, PATIENCE, "a server")
    code, said = check(two_hosts, given, tmp_path, "--master_port", 23456)
    listening.kill()
    assert code == 2
    assert re.search(r"^  node-a: port 23456 is in use", said, re.MULTILINE), said


# --- Slurm


def submitted(slurm: Slurm, given: dict, cwd: Path, *options: object, **environment: str) -> tuple[str, Path]:
    """The id of a job of `lmgym launch --slurm --submit`, and its log."""
    words = ["lmgym", "launch", "--slurm", "--submit", "--nodes", 2, *options, SCRIPT]
    words += flags(**given, output=cwd / "run")
    done = slurm.cluster[0].run(words, cwd, **slurm.environment, **environment)
    assert done.returncode == 0, done.stderr
    found = re.search(r"^job (\d+), of .*; its log will be (.*)$", done.stderr, re.MULTILINE)
    assert found, done.stderr
    return found[1], Path(found[2])


@pytest.mark.parametrize("how", ["requeue", "USR1"])
def test_a_slurm_job_goes_back_into_the_queue_and_ends_as_if_nothing_had_happened(
    how: str, slurm: Slurm, given: dict, tmp_path: Path, timed
) -> None:
    ours = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", **KEY}
    options = ["--time", "10:00", "--partition", "main", "--job_name", "noisy"]
    whole = tmp_path / "whole"
    whole.mkdir()
    job, log = submitted(slurm, given, whole, *options, **ours)
    slurm.wait_for_state(job, "COMPLETED", seconds=PATIENCE)
    assert KEY["HF_TOKEN"] not in (whole / "outputs/slurm/noisy.sbatch").read_text() + log.read_text()

    job, log = submitted(slurm, given, tmp_path, *options, **ours, **SLOWLY)
    folder = tmp_path / "run"
    wait_for(lambda: (steps(folder) or [0])[-1] >= 4, PATIENCE, "checkpoint 4")
    with timed(f"{how} of a job of lmgym launch"):
        if how == "requeue":
            slurm.ask("scontrol", "requeue", job)
        else:  # as Slurm does before the time ends
            slurm.ask("scancel", "--batch", "--signal=USR1", job)
        slurm.wait_for_state(job, "PENDING", seconds=PATIENCE)
    assert outcome(folder) == ("interrupted", 75), log.read_text()[-6000:]
    saved = steps(folder)[-1]
    slurm.start_now(job)
    slurm.wait_for_state(job, "COMPLETED", seconds=PATIENCE)
    said = log.read_text()
    assert said.count("resuming from") == 1, said[-6000:]  # in the log of both starts
    assert f"step-{saved:08}" in said
    assert outcome(folder) == ("finished", 0)
    assert digest(folder) == digest(whole / "run")
    assert measured(folder) == measured(whole / "run")


def test_the_batch_file_is_taken_by_slurm_and_its_refusals_are_one_line(
    slurm: Slurm, given: dict, tmp_path: Path
) -> None:
    words = ["lmgym", "launch", "--slurm", "--nodes", 2, SCRIPT, *flags(**given)]
    node = slurm.cluster[0]
    (tmp_path / "job.sbatch").write_text(node.run(words, tmp_path, **slurm.environment).stdout)
    done = node.run(["sbatch", "--test-only", tmp_path / "job.sbatch"], tmp_path, **slurm.environment)
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr
    for option, value, message in (
        ("--partition", "nope", "invalid partition specified: nope"),
        ("--time", "soon", "Invalid --time specification"),
        ("--sbatch", "reservation=none", "reservation"),
    ):
        done = node.run([*words[:3], option, value, "--submit", *words[5:]], tmp_path, **slurm.environment)
        assert done.returncode == 2, (option, done.stdout, done.stderr)
        error = done.stderr.splitlines()[-1]
        assert error.startswith("error: sbatch refused "), done.stderr
        assert message in error


def test_nodes_of_an_allocation_are_compared(slurm: Slurm, given: dict, tmp_path: Path) -> None:
    words = ["lmgym", "launch", "--slurm", "--nodes", 2, "--dry_run", SCRIPT, *flags(**given)]
    node = slurm.cluster[0]
    done = node.run(words, tmp_path, **slurm.environment)
    assert done.returncode == 2
    assert "needed: salloc --nodes=2 --ntasks-per-node=1 lmgym launch --slurm --nodes 2 --dry_run" in done.stderr
    allocate = ["salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"]
    done = node.run([*allocate, *words], tmp_path, seconds=PATIENCE, **slurm.environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 node(s) agree" in done.stdout
    (tmp_path / "empty").mkdir()
    with over(slurm.cluster[1], given["dataset"].parent, tmp_path / "empty"):
        done = node.run([*allocate, *words], tmp_path, seconds=PATIENCE, **slurm.environment)
    assert done.returncode == 2
    assert re.search(r"^  dataset differs: node-a \d+ bytes, \w+, node-b missing$", done.stderr, re.MULTILINE)
