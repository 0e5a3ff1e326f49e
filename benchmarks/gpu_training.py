"""Micro-batches of SFT and a reward model, and generation, with random weights of a shape on one GPU: time and memory.

Rows of 1,024 tokens, half of them a reply that is learned (SFT) or read at its end (reward model). A micro-batch is a
forward and a backward; the optimizer's step is timed beside it, since it comes once an update. In bf16 on a GPU.
Roofs are a device's peak rates: by a large copy and a large matrix product, and by its data sheet.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from model_costs import Shape, Way, generation_bytes
from shared import random_model, read_shape, saved_config

from lmgym.config import ModelConfig
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.classifiers import Float32Head, round_frozen_layers
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_config
from lmgym.models.lora import add_lora
from lmgym.models.memory import GIB, estimate_memory
from lmgym.text import Replies
from lmgym.training.setup import CHECKPOINTING

ROW, PROMPT, NEW_TOKENS, TIMES = 1024, 256, 128, 3
# bytes a second of memory, dense bf16 operations a second: NVIDIA's data sheets of the SXM parts (H200 Tensor Core GPU:
# 4.8 TB/s, 1,979 TFLOPS "with sparsity", half of it without; H100: 3.35 TB/s and the same processor)
DATA_SHEETS = {"NVIDIA H200": (4.8e12, 989e12), "NVIDIA H100 80GB HBM3": (3.35e12, 989e12)}
BLOCKS = 7  # timings, of which the median is taken


@dataclass(frozen=True)
class NoText:
    """A tokenizer for token ids that are never decoded."""

    size: int
    pad_token_id = 0
    eos_token, eos_token_id = "<eos>", 1

    def __len__(self) -> int:
        return self.size

    def decode(self, ids, **settings) -> str:
        """Nothing."""
        return ""


def synchronize(device: torch.device) -> None:
    """Waits for what was asked of a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """Wall seconds of one of so many."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / times


def measure_roofs(device: torch.device) -> dict[str, float]:
    """Bytes (read and written) and bf16 operations a second, on random numbers; on a CPU small ones, in fp32."""
    on_gpu = device.type == "cuda"
    numbers, side, times = (GIB, 8192, 10) if on_gpu else (1 << 22, 256, 1)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    source = torch.randn(numbers, dtype=dtype, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
    product = torch.empty_like(a)
    best = {}
    for name, work, amount in (
        ("bytes_per_second", lambda: target.copy_(source), 2 * source.nbytes),
        ("flops_per_second", lambda: torch.mm(a, b, out=product), 2.0 * side**3),
    ):
        seconds_of(work, device, times)
        best[name] = amount / statistics.median(seconds_of(work, device, times) for _ in range(BLOCKS))
    return best


def data_sheet(name: str) -> dict[str, float] | None:
    """The same by the data sheet, where it is known."""
    if name not in DATA_SHEETS:
        return None
    return dict(zip(("bytes_per_second", "flops_per_second"), DATA_SHEETS[name], strict=True))


@dataclass(frozen=True)
class Case:
    """A stage, a shape, and how it is trained."""

    stage: str
    """sft, or reward"""
    shape: str
    lora_rank: int
    checkpointing: bool

    def __str__(self) -> str:
        way = f"LoRA {self.lora_rank}" if self.lora_rank else "all weights"
        return f"{self.stage} {self.shape} {way}{', checkpoints' * self.checkpointing}"

    @property
    def settings(self) -> ModelConfig:
        """In our words."""
        return ModelConfig(self.shape, lora_rank=self.lora_rank, gradient_checkpointing=self.checkpointing)


CASES = {
    "tiny": [Case("sft", "tiny", 4, False), Case("reward", "tiny", 0, True)],
    "qwen3-0.6b": [Case(stage, "qwen3-0.6b", rank, False) for stage in ("sft", "reward") for rank in (16, 0)],
    "qwen3-4b": [
        *(Case(stage, "qwen3-4b", 16, True) for stage in ("sft", "reward")),
        Case("sft", "qwen3-4b", 0, True),
    ],
    "qwen3-8b": [Case(stage, "qwen3-8b", 16, True) for stage in ("sft", "reward")],
}


def autocast(device: torch.device):
    """As training computes: bf16 on a GPU, fp32 in a rehearsal."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@contextmanager
def peak(device: torch.device) -> Iterator[dict[str, float | None]]:
    """`gib_at_peak` of what runs within."""
    found: dict[str, float | None] = {"gib_at_peak": None}
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    yield found
    if device.type == "cuda":
        found["gib_at_peak"] = torch.cuda.max_memory_allocated(device) / GIB


def build(case: Case, vocabulary: int, device: torch.device) -> Any:
    """The model as its stage calls it, made on the device."""
    kind = "causal" if case.stage == "sft" else "classifier"
    model = random_model(case.shape, NoText(vocabulary), kind, 0, str(device))
    if kind == "classifier":
        model.score.__class__ = Float32Head  # as load_classifier has it
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    if case.lora_rank:
        model = add_lora(model, case.lora_rank, 2 * case.lora_rank, 0.0)
    called = PolicyModel(model) if kind == "causal" else ScoringModel(model)
    if device.type == "cuda":
        round_frozen_layers(model)
    model.train()
    return called


def step_of(case: Case, model: Any, rows: list[list[int]], device: torch.device) -> Callable[[], None]:
    """A forward and a backward of one micro-batch."""
    if case.stage == "sft":
        half = ROW // 2
        inputs = model.collate([row[:-1] for row in rows], [range(half - 1, ROW - 1)] * len(rows))
        inputs["labels"] = torch.tensor([id_ for row in rows for id_ in row[half:]])
    else:
        inputs = model.collate([Replies([], [row]) for row in rows], 0)
    inputs = {name: value.to(device) for name, value in inputs.items()}

    def step() -> None:
        with autocast(device):
            outputs = model(**inputs)
            loss = -outputs[0].mean() if case.stage == "sft" else outputs.float().square().mean()
        loss.backward()

    return step


def measure_training(case: Case, sizes: list[int], device: torch.device) -> list[dict]:
    """An entry for each size of a micro-batch in tokens, until one does not fit."""
    shape, found = Shape.of(read_shape(case.shape)), []
    rng = np.random.default_rng(0)
    with peak(device) as building:
        model = build(case, shape.vocabulary, device)
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-6, fused=True)
        synchronize(device)
    for tokens in sizes:
        rows = rng.integers(2, shape.vocabulary, (max(1, tokens // ROW), ROW)).tolist()
        entry = {"tokens": len(rows) * ROW, "gib_expected": expected(case, len(rows) * ROW, device)}
        try:
            with peak(device) as at:
                step = step_of(case, model, rows, device)
                step()
                update = seconds_of(optimizer.step, device)
                optimizer.zero_grad(set_to_none=False)
                seconds = statistics.median(seconds_of(step, device) for _ in range(TIMES))
        except torch.OutOfMemoryError:
            found.append(entry | {"out_of_memory": True})
            break
        found.append(
            entry | at | {"seconds": seconds, "tokens_per_second": entry["tokens"] / seconds, "update_seconds": update}
        )
    for entry in found:
        entry["gib_to_build"] = building["gib_at_peak"]
    return found


def expected(case: Case, tokens: int, device: torch.device) -> float:
    """GiB by the estimate that a run prints and refuses by."""
    settings = replace(case.settings, precision="bf16" if device.type == "cuda" else "fp32")
    with saved_config(case.shape) as folder:
        config = load_config(folder)
        memory = estimate_memory(config, tokens, settings, None, 1, case.stage == "sft", tokens // 2)
    return memory.total / GIB


def model_to_sample(name: str, device: torch.device) -> tuple[Shape, Any, torch.dtype]:
    """A shape, a random model of it, and the dtype of its weights: bf16 on a GPU, fp32 on a CPU."""
    shape = Shape.of(read_shape(name))
    model = random_model(name, NoText(shape.vocabulary), "causal", 0, str(device)).requires_grad_(False).eval()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return shape, model, dtype


def measure_generation(name: str, batches: list[int], roofs: dict[str, float], device: torch.device) -> list[dict]:
    """Replies of one length to prompts of one length by our engine, the weights in bf16, for each batch."""
    shape, model, dtype = model_to_sample(name, device)
    rng, found = np.random.default_rng(0), []
    for rows in batches:
        prompts = rng.integers(2, shape.vocabulary, (rows, PROMPT)).tolist()
        generator = LocalGenerator(model, NoText(shape.vocabulary), rows)

        def sample(new: int, generator=generator, prompts=prompts) -> None:
            generator.renew()
            generator.generate(prompts, 1, Sampling(new, seed=0, ends_at_eos=False))

        with peak(device) as at:
            sample(NEW_TOKENS)  # graphs are captured
            whole, first = (seconds_of(lambda new=new: sample(new), device) for new in (NEW_TOKENS, 1))
        read = generation_bytes(shape, Way("whole"), [PROMPT] * rows, NEW_TOKENS, dtype.itemsize)
        found.append(
            at
            | {
                "rows": rows,
                "prompt": PROMPT,
                "new_tokens": NEW_TOKENS,
                "seconds": whole,
                "prefill_seconds": first,
                "tokens_per_second": rows * NEW_TOKENS / whole,
                "share_of_bandwidth": read / whole / roofs["bytes_per_second"],
            }
        )
    return found
