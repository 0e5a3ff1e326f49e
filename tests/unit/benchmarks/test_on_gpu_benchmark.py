"""The counts of benchmarks/on_gpu.py, by hand and by torch's counter; and all of it rehearsed on a CPU."""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path
from unittest.mock import patch

import gpu_ppo
import launching
import on_gpu
import pytest
import torch
from gpu_ppo import Bench
from gpu_training import CASES, NoText, expected
from model_costs import (
    Rows,
    Shape,
    Way,
    experience_flops,
    generation_bytes,
    learning_flops,
    policy_flops,
    policy_products,
    reference_flops,
    scoring_flops,
    trunk_flops,
)
from shared import random_model, read_shape
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.lora import add_lora
from lmgym.text import Replies
from ppo.actor_critic import ActorCritic, Reference, without_adapters

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "benchmarks/on_gpu.py"
# 2 layers; q 8x8, k and v 8x4, o 8x8, gate and up 8x6, down 6x8: 64 + 64 + 64 + 144 = 336 weights a layer
SMALL = Shape(layers=2, width=8, heads=2, key_heads=1, head_width=4, inner=6, vocabulary=10, tied=True)
WAYS = (Way("full"), Way("hydra", frozen_layers=2), Way("lora", lora_rank=4))
TOKENS, READ, BATCH = 12, 5, 3
MEASURED = json.loads((ROOT / "benchmarks/results/on_gpu.json").read_text())["training"]


def test_weights_are_those_that_the_published_models_have() -> None:
    assert SMALL.weights == 2 * 336 + 80
    # Qwen3's model cards: 0.6B, of which 0.44B not embeddings; 8.2B, of which 6.95B
    small, large = (Shape.of(read_shape(name)) for name in ("qwen3-0.6b", "qwen3-8b"))
    assert (round(small.weights / 1e9, 2), round((small.weights - small.words) / 1e9, 2)) == (0.60, 0.44)
    assert (round(large.weights / 1e9, 1), round((large.weights - 2 * large.words) / 1e9, 2)) == (8.2, 6.95)


def test_a_forward_by_hand() -> None:
    rows = Rows([3, 5], [1, 2])
    layer = 2 * 8 * 336 + 4 * (9 + 25) * 8
    # the last one: queries, keys and values of all 8 tokens, the rest at the 3 that are read, each over its row
    last = 2 * 8 * 128 + 2 * 3 * (336 - 128) + 4 * (1 * 3 + 2 * 5) * 8
    head, values = 2 * 3 * 80, 2 * 3 * (8 * 16 + 16)
    assert policy_flops(SMALL, Way("full"), rows) == layer + last + head + values
    assert trunk_flops(SMALL, Way("hydra", 1), rows) == layer
    assert reference_flops(SMALL, Way("hydra", 1), rows) == last + head
    assert experience_flops(SMALL, Way("hydra", 1), rows) == layer + 2 * (last + head) + values
    adapters = 2 * 2 * (8 * 64 + 8 * 12 * 2 + 8 * 14 * 3 - 8 * 64)  # rank 2: in + out of 16, 12, 12, 16, 14, 14, 14
    assert adapters == 2 * 2 * 8 * (12 * 2 + 14 * 3)
    whole = sum(2 * 8 * 2 * (a + b) for a, b in SMALL.linear.values())
    in_last = sum(2 * (8 if n in "qkv" else 3) * 2 * (a + b) for n, (a, b) in SMALL.linear.items())
    found = policy_flops(SMALL, Way("lora", lora_rank=2), rows)
    assert found == layer + last + head + values + whole + in_last


def test_a_backward_by_hand() -> None:
    rows, way = Rows([4], [4]), Way("hydra", 1)
    # two gradients of each product; one of the head, which is tied and frozen
    layer, attention, head, values = 2 * 4 * 336, 4 * 16 * 8, 2 * 4 * 80, 2 * 4 * 144
    backward = 2 * layer + 2 * attention + head + 2 * values
    forward = layer + attention + head + values
    assert learning_flops(SMALL, way, rows, 4, True) == 4 * backward + 3 * forward
    assert learning_flops(SMALL, way, rows, 4, False) == 4 * backward + 4 * forward
    # with adapters the weights below them have none, and nobody asks for what comes into q, k and v of layer 0
    lora = sum(product.backward for product in policy_products(SMALL, Way("lora", lora_rank=2), rows))
    adapters = 2 * sum(2 * 4 * 2 * (a + b) for a, b in SMALL.linear.values())
    into_first = 2 * 4 * (128 + 2 * 3 * 8)
    assert lora == 2 * (layer + 2 * attention + adapters) + head + 2 * values - into_first


def test_bytes_of_generation_by_hand() -> None:
    # 3 tokens: weights thrice; the second reads 5 + 7 keys and values, the third one more a row
    cached = 2 * 2 * 1 * 4 * (6 + 8 + 7 + 9)
    assert generation_bytes(SMALL, Way("full"), [5, 7], 3, 2) == 2 * (3 * (2 * 336 + 80) + cached)
    more = generation_bytes(SMALL, Way("lora", lora_rank=2), [5, 7], 3, 2)
    assert more - 2 * (3 * (2 * 336 + 80) + cached) == 2 * 3 * SMALL.adapters(2)


def test_an_8b_policy_with_adapters_or_few_layers_fits_on_a_gpu_of_80_gb_and_adapters_in_36_gib() -> None:
    """With 64 rows of 512 tokens at most, of which 16 a micro-batch; beside a scorer of .6B in fp32."""
    arguments = argparse.Namespace(seed=0)
    gib = {
        way.name: Bench("qwen3-8b", way, torch.device("cuda"), arguments).memory() / 2**30
        for way in (Way("hydra", 32), Way("lora", lora_rank=16))
    }
    scorer = 4 * Shape.of(read_shape("qwen3-0.6b")).weights / 2**30
    assert gib["lora"] - scorer < 36
    assert 36 < gib["hydra"] < 75


def counted(work) -> tuple[float, torch.Tensor]:
    """Operations by torch's counter, attention as plain products, but for angles: a product in transformers 5.17."""
    counter = FlopCounterMode(display=False)
    fused = patch("torch._fused_sdp_choice", return_value=SDPBackend.FLASH_ATTENTION.value)  # no blocks: they recompute
    with fused, sdpa_kernel(SDPBackend.MATH), counter:
        found = work()
    counts = counter.get_flop_counts()
    angles = sum(sum(of_module.values()) for name, of_module in counts.items() if "Rotary" in name or "rotary" in name)
    return counter.get_total_flops() - angles, found


def tiny_actor(way: Way) -> ActorCritic:
    policy = random_model("tiny", NoText(512), "causal", 0)
    if way.lora_rank:
        policy = add_lora(policy, way.lora_rank, 8, 0.0)
    return ActorCritic(policy, frozen_layers=way.frozen_layers)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_forwards_and_backwards_are_what_torch_counts(way: Way) -> None:
    shape, rows = Shape.of(read_shape("tiny")), Rows([TOKENS] * BATCH, [READ] * BATCH)
    actor = tiny_actor(way)
    reference = Reference.of(actor)
    ids = torch.randint(2, 512, (BATCH, TOKENS + 1), generator=torch.Generator().manual_seed(0))
    batch, targets = pack_rows(ids.tolist(), [READ] * BATCH), ids[:, -READ:].flatten()
    trunk, states = counted(lambda: actor(batch, trunk_only=True)) if way.frozen_layers else (0, None)
    forward, (logprobs, values, _) = counted(lambda: actor(batch, targets, states))
    backward, _ = counted(lambda: (logprobs.sum() + values.sum()).backward())
    products = list(policy_products(shape, way, rows, way.frozen_layers))
    # what states need of a head's backward is computed in its forward: on a CPU also of one that learns
    early = 2 * BATCH * READ * shape.words
    assert trunk == trunk_flops(shape, way, rows)
    assert trunk + forward - early == policy_flops(shape, way, rows)
    assert forward - early == sum(product.forward for product in products)
    assert backward + early == sum(product.backward for product in products)
    with torch.no_grad():
        if reference is not None:
            again, _ = counted(lambda: reference.logprobs(batch, targets, states))
        else:
            with without_adapters(actor):
                again, _ = counted(lambda: actor(batch, targets, states, values=False))
    assert again == reference_flops(shape, way, rows)


def test_scores_are_what_torch_counts() -> None:
    scorer = ScoringModel(random_model("tiny", NoText(512), "classifier", 0))
    rows = torch.randint(2, 512, (8, 16), generator=torch.Generator().manual_seed(0)).tolist()
    with torch.no_grad():
        found, _ = counted(lambda: scorer(**scorer.collate([Replies([], [row]) for row in rows], 0)))
    assert found == scoring_flops(Shape.of(read_shape("tiny")), [16] * 8)


# the others are of the same ways at another size
QUICK = [name for name in MEASURED if "qwen3-0.6b" in name or name.startswith("sft qwen3-4b")]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MEASURED]
)
def test_estimates_are_within_five_percent_of_what_an_h200_held(name: str) -> None:
    case = next(case for cases in CASES.values() for case in cases if str(case) == name)
    entry = MEASURED[name][-1]
    found = expected(case, entry["tokens"], torch.device("cuda"))
    assert found == pytest.approx(entry["gib_at_peak"], rel=0.05)
    assert found == pytest.approx(entry["gib_expected"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_line_says_what_is_missing() -> None:
    done = launching.run(launching.launch("fork", script=SCRIPT))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("no CUDA GPU is at hand; needed: one, or --device cpu")


@pytest.mark.slow
def test_a_rehearsal_on_a_cpu_checks_times_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "out.json"
    words = ["x", "--device", "cpu", "--models", "tiny", "--iterations", "1", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", words)
    assert on_gpu.main() == 0
    record = json.loads(path.read_text())
    assert record["machine"]["cpu"]
    assert record["versions"]["torch"] == version("torch")
    walks = record["learning"]["random walks"]
    assert walks["exit_codes"] == [75, 0]
    assert walks["reward_before"] < 0.4 < 0.8 < walks["reward_after"]
    for entries in record["training"].values():
        assert [entry["tokens"] for entry in entries] == [1024]
        assert entries[0]["tokens_per_second"] == pytest.approx(1024 / entries[0]["seconds"])
    assert record["generation"]["tiny"][0]["rows"] == 2
    assert list(record["ppo"]) == ["tiny full", "tiny hydra", "tiny lora"]
    for run in record["ppo"].values():
        checks = run["checks"]
        assert checks["failed"] == 0
        assert checks["sampler_gap_mean"] < 1e-4
        assert checks["reference_apart_mean"] <= 1e-5
        assert checks["weights_changed"] == 1
        for phase in ("generation", "scores", "log-probs, values, reference", "epochs"):
            entry = run["phases"][phase]
            assert entry["tokens_per_second"] == pytest.approx(entry["tokens"] / entry["seconds"]["median"])
            assert entry["share"] > 0
        assert run["phases"]["generation"]["tokens"] == 16 * 48
        times = [phase["seconds"]["median"] for phase in run["phases"].values()]
        assert run["iteration_seconds"]["median"] == pytest.approx(sum(times))
    assert "ppo tiny lora" in capsys.readouterr().out
    # what another call measures stands beside what was there; a check that fails is told, kept, and ends with 1
    monkeypatch.setattr(sys, "argv", [*words, "--parts", "ppo"])
    monkeypatch.setitem(gpu_ppo.MOST_GAP, "fp32", 0.0)
    assert on_gpu.main() == 1
    assert "NOT RIGHT: tiny lora: sampler_gap_mean" in capsys.readouterr().out
    record = json.loads(path.read_text())
    assert {name: run["checks"]["failed"] for name, run in record["ppo"].items()} == {
        "tiny full": 1, "tiny hydra": 1, "tiny lora": 1,
    }  # fmt: skip
    assert record["learning"]
