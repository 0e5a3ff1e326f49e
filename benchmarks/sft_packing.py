"""Packing in SFT: padding and CPU time that it saves, on conversations of the simulated world, in fp32.

    .venv/bin/python benchmarks/sft_packing.py        # writes benchmarks/results/sft_packing.json

Ways through the same rows: padded to the longest of a random micro-batch with logits at every place, as a plain loop
does; the same sorted by length within an update; ours, packed, with logits where tokens have loss; and, where
.venv-bench has it (README.md), TRL's packing, with its own loss and with the model's own head. Losses are asserted
equal first, and our gradients to padding's. Each way has its quickest micro-batch. Forward and backward; CPU seconds
of one thread, pinned, interleaved, medians.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from shared import ROOT, Contender, describe_machine, pin_command, run_contender, write_result
from transformers import AutoModelForCausalLM

from lmgym.apps.world.making import make_world, make_world_policy
from lmgym.data.records import read_records
from lmgym.models.forward.policies import PolicyModel, load_policy
from lmgym.models.loading import load_tokenizer
from sft.conversations import validate_chats
from sft.tokenization import Example, tokenize_chats

ROWS, MAX_LENGTH = 64, 512
MICRO_BATCHES = (1, 4, 16)  # each way may choose; rows
TRL_MICRO_BATCHES = (1, 4)  # packed rows of up to MAX_LENGTH tokens
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


def cut(rows: list[Example], size: int, by_length: bool) -> list[list[Example]]:
    """An update's micro-batches."""
    rows = sorted(rows, key=lambda row: -len(row.ids)) if by_length else rows
    return [rows[i : i + size] for i in range(0, len(rows), size)]


def padding_share(rows: list[Example], size: int, by_length: bool) -> float:
    """Share of the padded batches' slots that hold no token."""
    batches = cut(rows, size, by_length)
    slots = sum(len(batch) * max(len(row.ids) for row in batch) for batch in batches)
    return 1 - sum(len(row.ids) for row in rows) / slots


@dataclass
class Way:
    """Forward and backward of an update in this process."""

    model: Any
    loss: Callable[[list[Example]], torch.Tensor]
    by_length: bool
    size: int = 0
    """of its micro-batch: the quickest, once they were tried"""

    def run(self, rows: list[Example]) -> tuple[float, float]:
        """CPU seconds, and the mean loss."""
        began, total = time.process_time(), 0.0
        self.model.zero_grad()
        for batch in cut(rows, self.size, self.by_length):
            loss = self.loss(batch)
            loss.backward()
            total += loss.item()
        return time.process_time() - began, total / sum(len(row.targets) for row in rows)

    def choose_size(self, rows: list[Example]) -> None:
        """Keep the quickest micro-batch, by one run each."""
        spent = {}
        for size in MICRO_BATCHES:
            self.size = size
            spent[size], _ = self.run(rows)
        self.size = min(spent, key=lambda size: spent[size])


def labelled(row: Example, pad_id: int) -> dict[str, list[int]]:
    """A row as TRL takes it: the label of place t is what is predicted at t - 1, so there is one place more."""
    labels = [-100] * (len(row.ids) + 1)
    for place, target in zip(row.places, row.targets, strict=True):
        labels[place + 1] = target
    return {"input_ids": [*row.ids, pad_id], "labels": labels}


def main() -> None:
    """Data, the ways, figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default=str(ROOT / "benchmarks/results/sft_packing.json"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--peer_python", default=str(ROOT / ".venv-bench/bin/python"))
    parser.add_argument("--pinned", action="store_true", help="set by the benchmark itself")
    given = parser.parse_args()
    pin = pin_command(given.core)
    if not given.pinned and pin:
        os.execvp(pin[0], [*pin, sys.executable, *sys.argv, "--pinned"])
    torch.set_num_threads(1)
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder:
        make_world(f"{folder}/world", 5000, 0)
        make_world_policy(f"{folder}/world", f"{folder}/start", LAYERS, WIDTH)
        tokenizer = load_tokenizer(f"{folder}/start")
        pad = tokenizer.pad_token_id
        chats, _ = validate_chats(read_records(f"{folder}/world/sft.parquet"))
        plain = AutoModelForCausalLM.from_pretrained(f"{folder}/start")
        policy = PolicyModel(load_policy(f"{folder}/start", tokenizer))
        examples, _ = tokenize_chats(chats, tokenizer, MAX_LENGTH)
        rows = [examples[i] for i in np.random.default_rng(0).permutation(len(examples))[:ROWS]]
        ways = {
            "padded": Way(plain, lambda batch: padded_loss(plain, batch, pad), by_length=False),
            "padded, sorted by length": Way(plain, lambda batch: padded_loss(plain, batch, pad), by_length=True),
            "packed": Way(policy, lambda batch: packed_loss(policy, batch), by_length=True),
        }
        for way in ways.values():
            way.choose_size(rows)
        difference, loss = largest_difference(rows, ways)
        spec = {"model": f"{folder}/start", "rows": [labelled(row, pad) for row in rows], "max_length": MAX_LENGTH + 1}
        seconds, trl_sizes = measure(ways, rows, spec, given.peer_python, given.repetitions, loss)
    tokens = sum(len(row.ids) for row in rows)
    record = {
        "date": datetime.date.today().isoformat(), "machine": machine, "load_average_at_end": os.getloadavg()[0],
        "shape": {"layers": LAYERS, "width": WIDTH, "vocabulary": len(tokenizer)},
        "rows": ROWS, "tokens": tokens, "max_length": MAX_LENGTH,
        "output_tokens": sum(len(row.targets) for row in rows),
        "largest_gradient_difference": difference,
        "padding_share": {name: padding_share(rows, way.size, way.by_length) for name, way in ways.items()
                          if name != "packed"},
        "ways": {
            name: {
                "micro_batch": ways[name].size if name in ways else trl_sizes[name],
                "cpu_seconds": spent,
                "tokens_per_cpu_second": tokens / spent,
                "times_as_fast_as_padded": seconds["padded"] / spent,
            }
            for name, spent in seconds.items()
        },
    }  # fmt: skip
    print(json.dumps({name: record[name] for name in ("padding_share", "ways")}, indent=2))
    write_result(Path(given.output), record)


def largest_difference(rows: list[Example], ways: dict[str, Way]) -> tuple[float, float]:
    """Difference of our gradients from padding's, relative to their norm, and the loss; both asserted equal."""
    losses = {name: way.run(rows)[1] for name, way in ways.items()}
    for name, loss in losses.items():
        assert abs(loss / losses["padded"] - 1) < 1e-5, losses | {"differs": name}
    theirs, ours = (
        torch.cat([p.grad.flatten() for p in model.parameters()])
        for model in (ways["padded"].model, ways["packed"].model.causal)
    )
    difference = ((ours - theirs).norm() / theirs.norm()).item()
    assert difference < 1e-5, difference
    return difference, losses["padded"]


def measure(
    ways: dict[str, Way], rows: list[Example], spec: dict, peer_python: str, repetitions: int, loss: float
) -> tuple[dict[str, float], dict[str, int]]:
    """Median CPU seconds, all interleaved, and TRL's quickest micro-batches; TRL has a process a repetition."""
    trl = Contender("TRL", "trl_sft", "packing", peer_python, TRL_MICRO_BATCHES)
    if missing := trl.missing():
        print(f"without TRL's packing: {missing}")
    seconds: dict[str, list[float]] = {}
    of_trl: dict[tuple[str, int], list[float]] = {}
    for _ in range(repetitions):
        for name, way in ways.items():
            seconds.setdefault(name, []).append(way.run(rows)[0])
        found = {} if missing else run_contender(trl, {**spec, "micro_batches": trl.micro_batches}, 0, [])
        for head, by_size in found.items():
            for size, run in by_size.items():
                assert abs(run["loss"] / loss - 1) < 1e-5, f"TRL, {head}: loss {run['loss']}, ours {loss}"
                of_trl.setdefault((f"TRL's packing, {head}", int(size)), []).append(run["cpu_seconds"])
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    sizes: dict[str, int] = {}
    for (name, size), values in of_trl.items():
        if name not in medians or statistics.median(values) < medians[name]:
            medians[name], sizes[name] = statistics.median(values), size
    return medians, sizes


if __name__ == "__main__":
    main()
