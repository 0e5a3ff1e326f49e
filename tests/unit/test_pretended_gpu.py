"""The GPU that is pretended where there is none (tests/pretended): it refuses what a real one refuses, and no more."""

import json
import os
import subprocess
import sys

import pytest
import torch
from launching import PRETENDED

SCRIPT = """
import json, sys, threading, warnings
import torch
import torch.distributed as dist
from pretended_cuda import Graph

x, layer = torch.ones(3, device="cuda"), torch.nn.Linear(3, 2).to("cuda")
def later(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(outcome(work)))
    thread.start()
    thread.join()
    return found[0]

def outcome(work):
    try:
        found = work()
    except Exception as error:
        return type(error).__name__
    return str(found.device) if isinstance(found, torch.Tensor) else found

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, gradient):
        [kept] = ctx.saved_tensors
        where.append((str(gradient.device), str(kept.device)))
        return 2 * kept * gradient * ones

def squared(device):
    leaf = torch.full((3,), 2.0, device=device, requires_grad=True)
    Square.apply(leaf).sum().backward()
    return leaf.grad

def captured(work):
    graph = Graph()
    graph.capture_begin()
    try:
        return work()
    finally:
        graph.capture_end()

def replayed():
    count, given, graph = [1], torch.ones(2, device="cuda"), Graph()
    graph.capture_begin()
    doubled = given * 2 + count[0]
    first = doubled[:1]
    graph.capture_end()
    given.fill_(5)
    count[0] = 100  # a graph does not know of it
    graph.replay()
    return [doubled.tolist(), first.tolist()]

def reduced(device):
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(given := torch.ones(2, device=device))
    return given

def warned(work):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        work()
        torch.cuda.set_sync_debug_mode("default")
        work()
    return [str(one.message).rpartition(" ")[2] for one in told]

where, ones = [], torch.ones(3)
waited = {
    "none": warned(lambda: [x + x, x.to("cuda"), x[torch.tensor([0])], ones.sum().item(), ones.cpu(), x.fill_(1.0)]),
    "a number": warned(lambda: x.sum().item()), "a truth": warned(lambda: bool(x.any())),
    "there": warned(lambda: ones.to("cuda")), "and back": warned(lambda: x.cpu()), "a mask": warned(lambda: x[x > 0]),
    "not held up": warned(lambda: ones.to("cuda", non_blocking=True)),
}
found = {
    "made": outcome(lambda: x), "a layer": outcome(lambda: layer(x)), "its weight": outcome(lambda: layer.weight),
    "back": outcome(lambda: x.cpu()), "by a tensor": outcome(lambda: torch.ones(1).to(x)),
    "a number": outcome(lambda: (x * torch.tensor(2.0)).sum().item()),
    "its places": outcome(lambda: x[torch.tensor([0])]), "written over": outcome(lambda: x.clone().copy_(ones)),
    "both sides": outcome(lambda: x + ones), "a layer of a CPU's": outcome(lambda: layer(ones)),
    "a CPU's places": outcome(lambda: ones[torch.tensor([0], device="cuda")]),
    "numpy": outcome(lambda: x.numpy()), "another thread": later(lambda: x + ones),
    "a CPU's generator": outcome(lambda: torch.rand(2, generator=torch.Generator(), device="cuda")),
    "its own generator": outcome(lambda: torch.rand(2, generator=torch.Generator("cuda"), device="cuda")),
    "a backward over both": outcome(lambda: squared("cuda")), "a backward on the CPU": outcome(lambda: squared("cpu")),
    "seen in backwards": where,
    "waits": outcome(lambda: captured(lambda: x.sum().item())), "replayed": replayed(),
    "waited": waited,
    "reduced": outcome(lambda: reduced("cuda")), "reduced on the CPU": outcome(lambda: reduced("cpu")),
}
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def outcomes() -> dict:
    """The outcome of each piece of work in a process with a pretended GPU."""
    environment = {**os.environ, **PRETENDED}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("made", "cuda:0"),
        ("a layer", "cuda:0"),
        ("its weight", "cuda:0"),
        ("back", "cpu"),
        ("by a tensor", "cuda:0"),
        ("a number", 6.0),
        ("its places", "cuda:0"),
        ("written over", "cuda:0"),
        ("its own generator", "cuda:0"),
        ("a backward on the CPU", "cpu"),
        ("reduced", "cuda:0"),
    ],
)
def test_work_on_one_side_runs(outcomes: dict, work: str, expected: object) -> None:
    assert outcomes[work] == expected


@pytest.mark.parametrize(
    "work",
    [
        *("both sides", "a layer of a CPU's", "a CPU's places", "another thread", "a CPU's generator"),
        *("a backward over both", "waits", "reduced on the CPU"),
    ],
)
def test_what_a_gpu_refuses_is_refused(outcomes: dict, work: str) -> None:
    assert outcomes[work] == "Refused"


def test_numpy_wants_a_tensor_of_the_cpu(outcomes: dict) -> None:
    assert outcomes["numpy"] == "TypeError"


def test_a_backward_knows_where_its_gradient_and_what_was_kept_are(outcomes: dict) -> None:
    assert outcomes["seen in backwards"] == [["cuda:0", "cuda:0"], ["cpu", "cpu"]]


def test_a_replayed_graph_reads_its_inputs_anew_and_knows_nothing_of_what_python_counts(outcomes: dict) -> None:
    assert outcomes["replayed"] == [[11.0, 11.0], [11.0]]


def test_what_a_gpu_waits_for_is_told_where_that_is_asked_for(outcomes: dict) -> None:
    assert outcomes["waited"] == {
        "none": [], "a number": ["item"], "a truth": ["__bool__"], "there": ["to"], "and back": ["to"],
        "a mask": ["__getitem__"], "not held up": [],
    }  # fmt: skip


def test_without_the_word_there_is_none() -> None:
    environment = {**os.environ, **PRETENDED, "PRETENDED_GPU": ""}
    asks = "import sys; assert 'torch' not in sys.modules; import torch; print(torch.cuda.is_available())"
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == str(torch.cuda.is_available())
