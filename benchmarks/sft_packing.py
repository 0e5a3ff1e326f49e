"""Packing in SFT: padding and CPU time that it saves, on conversations of the simulated world.

    .venv/bin/python benchmarks/sft_packing.py        # writes benchmarks/results/sft_packing.json

Three ways through the same micro-batches, loss and gradients asserted equal first: rows padded to the longest of a
random micro-batch with logits at every place, as a plain loop does; the same rows sorted by length within an update;
and ours, packed, with logits where tokens have loss. CPU seconds of one thread, pinned, interleaved, medians.
"""

import argparse
import datetime
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from machine import describe_machine, pin_command
from transformers import AutoModelForCausalLM

from lmgym.apps.world.making import make_world, make_world_policy
from lmgym.data.records import read_records
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from sft.conversations import validate_chats
from sft.tokenization import Example, tokenize_chats

ROOT = Path(__file__).resolve().parent.parent
UPDATES, UPDATE_ROWS, MICRO_BATCH, MAX_LENGTH = 2, 64, 16, 512
LAYERS, WIDTH = 4, 128


def padded_loss(model, rows: list[Example], pad_id: int) -> torch.Tensor:
    """The plain way: ids and labels side by side, padded, through the model's own forward."""
    longest = max(len(row.ids) for row in rows) + 1
    ids = torch.full((len(rows), longest), pad_id)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    targets = torch.full((len(rows), longest), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        mask[i, : len(row.ids)] = 1
        targets[i, torch.tensor(row.places) + 1] = torch.tensor(row.targets)
    logits, counts = model(input_ids=ids, attention_mask=mask).logits, targets[:, 1:] != -100
    return F.cross_entropy(logits[:, :-1][counts].float(), targets[:, 1:][counts], reduction="sum")


def packed_loss(policy: PolicyModel, rows: list[Example]) -> torch.Tensor:
    """Ours."""
    labels = torch.tensor([target for row in rows for target in row.targets])
    return -policy(**policy.collate([row.ids for row in rows], [row.places for row in rows]), labels=labels)[0].sum()


def cut(rows: list[Example], by_length: bool) -> list[list[Example]]:
    """An update's micro-batches."""
    rows = sorted(rows, key=lambda row: -len(row.ids)) if by_length else rows
    return [rows[i : i + MICRO_BATCH] for i in range(0, len(rows), MICRO_BATCH)]


def padding_share(updates: list[list[Example]], by_length: bool) -> float:
    """Share of the padded batches' slots that hold no token."""
    batches = [batch for update in updates for batch in cut(update, by_length)]
    slots = sum(len(batch) * max(len(row.ids) for row in batch) for batch in batches)
    return 1 - sum(len(row.ids) for batch in batches for row in batch) / slots


def main() -> None:
    """Data, the three ways, figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/sft_packing.json"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--pinned", action="store_true", help="set by the benchmark itself")
    given = parser.parse_args()
    if not given.pinned and (pin := pin_command(0)):
        os.execvp(pin[0], [*pin, sys.executable, *sys.argv, "--pinned"])
    torch.set_num_threads(1)
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        make_world(f"{folder}/world", 5000, 0)
        make_world_policy(f"{folder}/world", f"{folder}/start", LAYERS, WIDTH)
        tokenizer = load_tokenizer(f"{folder}/start")
        chats, _ = validate_chats(read_records(f"{folder}/world/sft.parquet"))
        plain = AutoModelForCausalLM.from_pretrained(f"{folder}/start")
        policy = PolicyModel(load_policy(f"{folder}/start", tokenizer))
    examples, _ = tokenize_chats(chats, tokenizer, MAX_LENGTH)
    order = np.random.default_rng(0).permutation(len(examples))[: UPDATES * UPDATE_ROWS]
    updates = [[examples[i] for i in order[u * UPDATE_ROWS : (u + 1) * UPDATE_ROWS]] for u in range(UPDATES)]
    pad = tokenizer.pad_token_id
    ways: dict[str, Callable[[list[Example]], None]] = {
        "padded": lambda rows: run(plain, rows, False, lambda batch: padded_loss(plain, batch, pad)),
        "padded, sorted by length": lambda rows: run(plain, rows, True, lambda batch: padded_loss(plain, batch, pad)),
        "packed": lambda rows: run(policy, rows, True, lambda batch: packed_loss(policy, batch)),
    }
    difference = largest_difference(plain, policy, updates[0], ways)
    seconds = measure(ways, updates, given.repetitions)
    tokens = sum(len(row.ids) for update in updates for row in update)
    outputs = sum(len(row.targets) for update in updates for row in update)
    padding = {
        "padded": padding_share(updates, by_length=False),
        "padded, sorted by length": padding_share(updates, by_length=True),
        "packed": 0.0,
    }
    record = {
        "date": datetime.date.today().isoformat(), "machine": machine,
        "shape": {"layers": LAYERS, "width": WIDTH, "vocabulary": len(tokenizer)},
        "rows": UPDATES * UPDATE_ROWS, "tokens": tokens, "output_tokens": outputs, "max_length": MAX_LENGTH,
        "micro_batch": MICRO_BATCH, "largest_gradient_difference": difference,
        "ways": {
            name: {
                "padding_share": padding[name],
                "cpu_seconds": seconds[name],
                "tokens_per_cpu_second": tokens / seconds[name],
                "times_as_fast_as_padded": seconds["padded"] / seconds[name],
            }
            for name in ways
        },
    }  # fmt: skip
    print(json.dumps(record["ways"], indent=2))
    Path(given.output).write_text(json.dumps(record, indent=2) + "\n")


def run(model, rows: list[Example], by_length: bool, loss: Callable[[list[Example]], torch.Tensor]) -> None:
    """Forward and backward of an update."""
    model.zero_grad()
    for batch in cut(rows, by_length):
        loss(batch).backward()


def largest_difference(plain, policy: PolicyModel, update: list[Example], ways: dict) -> float:
    """Largest difference of one update's gradients, relative to their norm; asserted to be small."""
    ways["padded"](update)
    theirs = torch.cat([p.grad.flatten() for p in plain.parameters()])
    ways["packed"](update)
    ours = torch.cat([p.grad.flatten() for p in policy.causal.parameters()])
    difference = ((ours - theirs).norm() / theirs.norm()).item()
    assert difference < 1e-5, difference
    return difference


def measure(ways: dict, updates: list[list[Example]], repetitions: int) -> dict[str, float]:
    """Median CPU seconds of all updates, the ways interleaved."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, way in ways.items():
            began = time.process_time()
            for update in updates:
                way(update)
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
