"""Speed of generation: ours beside transformers' generate, greedy, in fp32: on shape S, or on a model's folder.

    .venv/bin/python benchmarks/generation.py        # writes benchmarks/results/generation.json
    .venv/bin/python benchmarks/generation.py --model outputs/models/smollm2-135m --repetitions 3

CPU seconds of one thread, pinned to a core, the two interleaved; the tokens are asserted equal first. Every reply ends
at a length that is forced, the same for both: transformers keeps a finished row in the batch, ours drops it.
"""

import argparse
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from machine import describe_machine, pin_command
from shapes import read_shape
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.generation.reply_batch import ReplyBatch

ROOT = Path(__file__).resolve().parent.parent
# name: (prompts, their lengths from and to, replies a prompt, lengths of the replies from and to)
CASES = {
    "batch 1": (1, (100, 100), 1, (64, 64)),
    "batch 8": (8, (40, 200), 1, (64, 64)),
    "batch 32": (32, (40, 200), 1, (64, 64)),
    "batch 32, replies of 8 to 64": (32, (40, 200), 1, (8, 64)),
    "8 replies to a prompt of 400": (1, (400, 400), 8, (64, 64)),
}


class EndAt(StoppingCriteria):
    """Row i ends after `lengths[i]` new tokens."""

    def __init__(self, prompt: int, lengths: np.ndarray) -> None:
        self.prompt, self.lengths = prompt, torch.from_numpy(lengths)

    def __call__(self, input_ids, scores, **kwargs) -> torch.Tensor:
        """Counts the replies that are done."""
        return input_ids.shape[1] - self.prompt >= self.lengths


def theirs(model, prompts: list[list[int]], n: int, lengths: np.ndarray) -> list[list[int]]:
    """transformers' generate, left-padded; prompts are repeated for several replies."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    found = model.generate(
        input_ids=ids.repeat_interleave(n, 0),
        attention_mask=mask.repeat_interleave(n, 0),
        do_sample=False,
        max_new_tokens=int(lengths.max()),
        pad_token_id=0,
        eos_token_id=None,
        stopping_criteria=StoppingCriteriaList([EndAt(longest, lengths)]),
    )
    return [row[longest : longest + length].tolist() for row, length in zip(found, lengths, strict=True)]


def ours(generator: LocalGenerator, prompts: list[list[int]], n: int, lengths: np.ndarray) -> list[list[int]]:
    """LocalGenerator; a row is closed once it has its length."""
    order = np.argsort([-len(p) for p in prompts], kind="stable")
    wanted = lengths.reshape(len(prompts), n)[order].ravel()

    def close_at_length(batch: ReplyBatch, position: int, _tokens: int = 1) -> None:
        batch.rows.open &= position + 1 < wanted[batch.rows.reply.numpy()]

    sampling = Sampling(max_new_tokens=int(lengths.max()), temperature=0, ends_at_eos=False)
    with patch.object(ReplyBatch, "close_ended", close_at_length):
        found = [completion for replies in generator.generate(prompts, n, sampling) for completion in replies]
    return [list(one.ids[:length]) for one, length in zip(found, lengths.tolist(), strict=True)]


def measure(model, generator: LocalGenerator, case: tuple, repetitions: int, seed: int) -> dict:
    """Medians of both, after their tokens were found equal."""
    count, (low, high), n, (shortest, longest) = case
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(5, 8000, rng.integers(low, high + 1)).tolist() for _ in range(count)]
    lengths = rng.integers(shortest, longest + 1, count * n)
    contenders: dict[str, Callable[[], list]] = {
        "transformers": lambda: theirs(model, prompts, n, lengths),
        "ours": lambda: ours(generator, prompts, n, lengths),
    }
    first = {name: run() for name, run in contenders.items()}
    assert first["ours"] == first["transformers"], "the two must make the same tokens"
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, run in contenders.items():
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {"medians": medians, "ratio": medians["transformers"] / medians["ours"], "seconds": seconds}


class NoText:
    """A tokenizer's part that is not measured."""

    eos_token_id = None

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a causal model's folder; default: shape S, random")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--output", type=Path, help="default: generation.json in results/, with the model's name")
    arguments = parser.parse_args()
    name = f"generation_{arguments.model.name}" if arguments.model else "generation"
    output = arguments.output or ROOT / f"benchmarks/results/{name}.json"
    torch.set_num_threads(1)
    if pin_command(arguments.core):
        os.sched_setaffinity(0, {arguments.core})
    torch.manual_seed(arguments.seed)
    if arguments.model:
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    else:
        settings = {name: value for name, value in read_shape("S").items() if name != "family"}
        model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    generator = LocalGenerator(model, NoText())
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "model": arguments.model.name if arguments.model else "shape S",
        "cases": {},
    }
    print(f"{'':32} {'transformers':>12} {'ours':>8} {'ratio':>6}   CPU seconds, medians of {arguments.repetitions}")
    for name, case in CASES.items():
        found = measure(model, generator, case, arguments.repetitions, arguments.seed)
        record["cases"][name] = found
        medians = found["medians"]
        print(f"{name:32} {medians['transformers']:>12.3f} {medians['ours']:>8.3f} {found['ratio']:>6.2f}", flush=True)
    output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
