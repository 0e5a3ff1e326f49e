"""Two "nodes" of one rank each, on this machine over loopback, are one node of two ranks."""

from collections.abc import Callable
from pathlib import Path

import pytest
from launching import (
    BIN,
    EXPERIMENT,
    ROOT,
    finish,
    flags,
    largest_difference,
    launch,
    read_metrics,
    read_weights,
    run,
    start,
)

from lmgym.distributed.ports import free_port

pytestmark = pytest.mark.slow

UPDATES = 6


@pytest.fixture(scope="module")
def arguments(small_models: dict[str, Path], few_pairs: Path, held_out_pairs: Path) -> Callable[[Path], list[object]]:
    """The experiment's flags for a folder: 5 updates of 4 pairs and one of 3."""

    def of(folder: Path) -> list[object]:
        return flags(
            deepspeed=ROOT / "configs/zero2.json",
            model=small_models["llama"],
            dataset=few_pairs,
            eval_dataset=held_out_pairs,
            max_length=256,
            precision="fp32",
            learning_rate=1e-3,
            global_batch=4,
            micro_batch=1,
            max_updates=UPDATES,
            log_updates=1,
            eval_updates=100,
            tracking="none",
            output=folder,
        )

    return of


@pytest.fixture(scope="module")
def one_node(tmp_path_factory, arguments) -> Path:
    folder = tmp_path_factory.mktemp("one_node")
    done = run(launch("deepspeed", *arguments(folder)))
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def assert_two_nodes_give_the_run_of_one(commands: list[list[object]], found: Path, wanted: Path) -> None:
    nodes = [start(command) for command in commands]
    done = [finish(node) for node in nodes]
    assert [node.returncode for node in done] == [0, 0], "\n".join(node.stdout + node.stderr for node in done)
    assert sum(node.stdout.count("after update 6: 40 held-out pairs") for node in done) == 1, "rank 0 alone speaks"
    a, b = read_metrics(found), read_metrics(wanted)
    assert len(a["train/loss"]) == UPDATES
    for name in ("train/loss", "train/grad_norm", "eval/margin_mean"):
        assert a[name] == pytest.approx(b[name], rel=1e-5, abs=1e-5), name
    assert largest_difference(read_weights(found), read_weights(wanted)) < 1e-5


def test_torchrun_on_two_nodes(tmp_path: Path, arguments, one_node: Path) -> None:
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "lmgym"]
    node = [BIN / "torchrun", "--nnodes", 2, "--nproc_per_node", 1, *meeting, EXPERIMENT, *arguments(tmp_path)]
    assert_two_nodes_give_the_run_of_one([node, node], tmp_path, one_node)


def test_deepspeed_on_a_hostfile_without_ssh(tmp_path: Path, arguments, one_node: Path) -> None:
    hosts = tmp_path / "hostfile"
    hosts.write_text("localhost slots=1\n127.0.0.1 slots=1\n")  # a name may stand in it once only
    folder = tmp_path / "output"
    meeting = ["--hostfile", hosts, "--no_ssh", "--master_addr", "127.0.0.1", "--master_port", free_port()]
    nodes = [[BIN / "deepspeed", *meeting, "--node_rank", rank, EXPERIMENT, *arguments(folder)] for rank in range(2)]
    assert_two_nodes_give_the_run_of_one(nodes, folder, one_node)
