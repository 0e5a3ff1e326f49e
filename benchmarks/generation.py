"""Speed of generation: ours beside transformers' generate, greedy, in fp32 and bf16: shape S, or a model's folder.

    .venv/bin/python benchmarks/generation.py        # writes benchmarks/results/generation.json
    .venv/bin/python benchmarks/generation.py --model outputs/models/smollm2-135m --cases "batch 1" "batch 8"

CPU seconds of one thread, pinned to a core, all interleaved; in fp32 the tokens are asserted equal first. The ratio is
of each side's quicker precision. `generate` reads a prompt of several replies once: its cache is expanded. Every reply
ends at a length that is forced, the same for both: transformers keeps a finished row in the batch, ours drops it.
"""

import argparse
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from shared import ROOT, describe_machine, pin_command, read_shape, write_result
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.generation.reply_batch import ReplyBatch

ROWS = 32  # replies at once, for both
# name: (prompts, their lengths from and to, replies a prompt, lengths of the replies from and to)
CASES = {
    "batch 1": (1, (100, 100), 1, (64, 64)),
    "batch 8": (8, (40, 200), 1, (64, 64)),
    "batch 32": (32, (40, 200), 1, (64, 64)),
    "batch 32, replies of 8 to 64": (32, (40, 200), 1, (8, 64)),
    "96 replies of 8 to 64": (96, (8, 40), 1, (8, 64)),
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
    """transformers' generate, `ROWS` replies at once, those to prompts of like length together."""
    order, size = sorted(range(len(prompts)), key=lambda i: -len(prompts[i])), ROWS // n
    found: dict[int, list[list[int]]] = {}
    for at in range(0, len(order), size):
        batch = order[at : at + size]
        wanted = lengths.reshape(len(prompts), n)[batch].ravel()
        rows = iter(their_batch(model, [prompts[i] for i in batch], n, wanted))
        found |= {i: [next(rows) for _ in range(n)] for i in batch}
    return [row for i in range(len(prompts)) for row in found[i]]


@torch.inference_mode()
def their_batch(model, prompts: list[list[int]], n: int, lengths: np.ndarray) -> list[list[int]]:
    """One call of generate, left-padded; several replies continue one cache of their prompt."""
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
        **({"past_key_values": expanded_cache(model, ids, mask, n)} if n > 1 else {}),
    )
    return [row[longest : longest + length].tolist() for row, length in zip(found, lengths, strict=True)]


def expanded_cache(model, ids: torch.Tensor, mask: torch.Tensor, n: int):
    """transformers' cache of left-padded prompts but for their last token, each read once and repeated n times."""
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    read = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    read = {name: tensor[:, :-1] for name, tensor in read.items()}
    cache = model(**read, use_cache=True, logits_to_keep=1).past_key_values
    cache.batch_repeat_interleave(n)
    return cache


def ours(generator: LocalGenerator, prompts: list[list[int]], n: int, lengths: np.ndarray) -> list[list[int]]:
    """LocalGenerator; a row is closed once it has its length."""

    def close_at_length(batch: ReplyBatch) -> None:
        batch.rows.open &= batch.tokens < lengths[batch.numbers][batch.rows.reply.numpy()]

    sampling = Sampling(max_new_tokens=int(lengths.max()), temperature=0, ends_at_eos=False)
    with patch.object(ReplyBatch, "close_ended", close_at_length):
        found = [completion for replies in generator.generate(prompts, n, sampling) for completion in replies]
    return [list(one.ids[:length]) for one, length in zip(found, lengths.tolist(), strict=True)]


def measure(models: dict[str, Any], case: tuple, repetitions: int, seed: int) -> dict:
    """Median seconds by side and precision, after the tokens in fp32 were found equal."""
    count, (low, high), n, (shortest, longest) = case
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(5, 8000, rng.integers(low, high + 1)).tolist() for _ in range(count)]
    lengths = rng.integers(shortest, longest + 1, count * n)
    contenders: dict[str, Callable[[], list]] = {}
    for dtype, model in models.items():
        generator = LocalGenerator(model, NoText(), generation_batch_size=ROWS)
        contenders[f"transformers {dtype}"] = lambda model=model: theirs(model, prompts, n, lengths)
        contenders[f"ours {dtype}"] = lambda generator=generator: ours(generator, prompts, n, lengths)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    tokens = {}
    for repetition in range(repetitions):
        for name, run in contenders.items():
            began = time.process_time()
            found = run()
            seconds[name].append(time.process_time() - began)
            assert tokens.setdefault(name, found) == found, "a repetition makes the same tokens"
        if repetition == 0:
            assert tokens["ours fp32"] == tokens["transformers fp32"], "the two must make the same tokens"
    return compare(seconds)


def compare(seconds: dict[str, list[float]]) -> dict:
    """Medians of contenders, named by side and precision, and how many times as quick ours is at each side's best."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    best = {
        side: min((name for name in medians if name.startswith(side)), key=lambda name: medians[name])
        for side in ("transformers", "ours")
    }
    ratio = medians[best["transformers"]] / medians[best["ours"]]
    return {"medians": medians, "best": best, "ratio": ratio, "seconds": seconds}


class NoText:
    """A tokenizer's part that is not measured."""

    eos_token_id = None

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


def load_models(folder: Path | None, seed: int) -> dict[str, Any]:
    """The same weights in both precisions: of a folder, or random in shape S."""
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as made:
        if folder is None:
            settings = {name: value for name, value in read_shape("S").items() if name != "family"}
            LlamaForCausalLM(LlamaConfig(**settings)).save_pretrained(made)
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
        return {
            name: AutoModelForCausalLM.from_pretrained(folder or made, dtype=dtype) for name, dtype in dtypes.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
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
    models = load_models(arguments.model, arguments.seed)
    for model in models.values():  # torch's first calls are slower
        theirs(model, [[5] * 8], 2, np.array([2, 2]))
        ours(LocalGenerator(model, NoText()), [[5] * 8], 2, np.array([2, 2]))
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "model": arguments.model.name if arguments.model else "shape S",
        "cases": {},
    }
    names = [f"{side} {dtype}" for side in ("transformers", "ours") for dtype in models]
    print(f"{'':30}" + "".join(f"{name:>19}" for name in names), f"ratio   CPU s, medians of {arguments.repetitions}")
    for name in arguments.cases:
        found = measure(models, CASES[name], arguments.repetitions, arguments.seed)
        record["cases"][name] = found
        seconds = "".join(f"{found['medians'][contender]:>19.3f}" for contender in names)
        print(f"{name:30}{seconds} {found['ratio']:>5.2f}", flush=True)
    record["load_average_at_end"] = os.getloadavg()[0]
    write_result(output, record)


if __name__ == "__main__":
    main()
