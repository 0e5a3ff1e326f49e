"""Attention in blocks of queries beside all weights at once: memory and CPU seconds of a forward and backward.

    .venv/bin/python benchmarks/attention_blocks.py        # writes benchmarks/results/attention_blocks.json

Models of two layers with random weights, a window of 128 tokens in the first: soft caps as in Gemma 2 (heads of 256),
sinks as in gpt-oss (heads of 64). Packed rows in fp32, logits at their last tokens. Every run is a process of its own,
turn and turn about: `ru_maxrss` less that before the rows, and CPU seconds of one thread of the second pass (at one row
of 8,192 tokens of the only one). Losses and norms of the gradients are asserted equal.
"""

import argparse
import datetime
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from machine import describe_machine
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.models.forward import attention
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.layer_attention import LayerAttention, eager_attention

ROOT = Path(__file__).resolve().parent.parent
WAYS = ("blocks", "at once")
WINDOWS = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}
SIZE = {
    "vocab_size": 512, "num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024, "pad_token_id": 0,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 8192, "num_labels": 1,
}  # fmt: skip
FAMILIES = {
    "gemma2": SIZE | WINDOWS | {"head_dim": 256},
    "gpt_oss": SIZE | WINDOWS | {"head_dim": 64, "num_local_experts": 4, "num_experts_per_tok": 2},
}
ROWS = {
    "64 x 32": (32,) * 64,
    "16 x 128": (128,) * 16,
    "4 x 512": (512,) * 4,
    "1 x 2,048": (2048,),
    "1 x 8,192": (8192,),
}
MIB = 1 << 20
BAR = 1e-4  # of the larger: fp32 sums in another order


def attend_at_once(query, key, value, scaling, window=None, softcap=None, sinks=None) -> torch.Tensor:
    """`attend_in_blocks` as it was before: [Q, T] weights of each head."""
    q, k, v = (states.transpose(1, 2) for states in (query, key, value))
    mask = attention.causal_mask(q.shape[2], k.shape[2], window, q.device)
    layer = LayerAttention(scaling, window, softcap, sinks)
    return eager_attention(q, k, v, layer, mask).transpose(1, 2)


def run_once(family: str, rows: str, way: str) -> dict[str, float]:
    """In this process: memory, CPU seconds, and what was computed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if way == "at once":
        attention.attend_in_blocks = attend_at_once
    policy = PolicyModel(AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family])))
    assert policy.packed
    policy.train()

    def one_pass(lengths: tuple[int, ...]) -> float:
        policy.zero_grad(set_to_none=False)
        ids = [
            torch.randint(1, 512, (length,), generator=torch.Generator().manual_seed(0)).tolist() for length in lengths
        ]
        loss = policy(**policy.collate(ids, [[length - 1] for length in lengths])).square().sum()
        loss.backward()
        return loss.item()

    lengths = ROWS[rows]
    one_pass((8, 8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if max(lengths) < 8192:
        one_pass(lengths)
    began = time.process_time()
    loss = one_pass(lengths)
    seconds = time.process_time() - began
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in policy.parameters() if p.grad is not None))
    return {"mib": held / MIB, "cpu_seconds": seconds, "loss": loss, "gradient": norm}


def in_a_process(family: str, rows: str, way: str) -> dict[str, float]:
    """`run_once` in a process of its own: `ru_maxrss` never falls."""
    command = [sys.executable, __file__, "--one", family, rows, way]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def compare(family: str, rows: str, repetitions: int) -> dict:
    """Medians of both ways, and of the ratio of CPU seconds within each repetition."""
    runs = [{way: in_a_process(family, rows, way) for way in WAYS} for _ in range(repetitions)]
    for run in runs:
        for name in ("loss", "gradient"):
            assert math.isclose(*(run[way][name] for way in WAYS), rel_tol=BAR), (family, rows, name, run)
    found: dict = {
        name: {way: statistics.median(run[way][name] for run in runs) for way in WAYS}
        for name in ("mib", "cpu_seconds")
    }
    ratios = [run["blocks"]["cpu_seconds"] / run["at once"]["cpu_seconds"] for run in runs]
    return found | {"ratio": statistics.median(ratios), "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/attention_blocks.json")
    parser.add_argument("--one", nargs=3)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_once(*arguments.one)))
        return
    record: dict = {"date": datetime.date.today().isoformat(), "machine": describe_machine(), "models": {}}
    for family in FAMILIES:
        for rows in ROWS:
            found = compare(family, rows, arguments.repetitions if rows != "1 x 8,192" else 1)
            record["models"].setdefault(family, {})[rows] = found
            mib, seconds = found["mib"], found["cpu_seconds"]
            held, spent = (" / ".join(f"{part[way]:.{n}f}" for way in WAYS) for part, n in ((mib, 0), (seconds, 2)))
            print(f"{family:8} {rows:10} {held} MiB  {spent} CPU s  ratio {found['ratio']:.2f}", flush=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
