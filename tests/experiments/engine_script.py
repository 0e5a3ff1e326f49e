"""Raw DeepSpeed through `Engine`: every config of configs/ against plain AdamW in this same process.

Run under a launcher; rank 0 writes what it found to the JSON file that the first argument names.
"""

import json
import sys
from pathlib import Path

import torch

from lmgym.distributed.deepspeed_config import read_config, resolve_config
from lmgym.distributed.deepspeed_engine import Engine
from lmgym.distributed.ranks import rank, start_distributed, stop_distributed, world_size
from lmgym.runs.launch import launch

CONFIGS = Path(__file__).parents[2] / "configs"
RANKS, ACCUMULATION, MICRO_BATCH, UPDATES, INPUTS, WIDTH = 2, 2, 3, 5, 8, 16
LEARNING_RATE, MAX_NORM = 1e-2, 0.05  # a norm that every update exceeds, so that clipping is compared too


def make_model() -> torch.nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(INPUTS, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1))


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [updates, accumulation, ranks, micro-batch, inputs] and targets."""
    generator = torch.Generator().manual_seed(1)
    shape = (UPDATES, ACCUMULATION, RANKS, MICRO_BATCH)
    return torch.randn(*shape, INPUTS, generator=generator), torch.randn(*shape, 1, generator=generator)


def squared_error(model, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum over rows."""
    return (model(inputs) - targets).square().sum()


def reference() -> dict[str, torch.Tensor]:
    """Weights after plain AdamW on whole batches."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    for inputs, targets in zip(*make_data(), strict=True):
        optimizer.zero_grad()
        rows = inputs.flatten(0, 2)
        (squared_error(model, rows, targets.flatten(0, 2)) / len(rows)).backward()
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM) > MAX_NORM
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def prepare(name: str) -> Engine:
    """The model under a config."""
    model = make_model()
    config = resolve_config(
        read_config(CONFIGS / name), MICRO_BATCH, ACCUMULATION, world_size(), "fp32", MAX_NORM, hidden_size=4
    )
    # 4: a persistence threshold of 40 weights, below which ZeRO 3 would shard nothing of a model this small
    return Engine.prepare(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE), config)


def update(engine: Engine, inputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """One update over this rank's micro-batches; gradients are averaged over ranks, so sums are scaled up."""
    for micro in range(ACCUMULATION):
        loss = squared_error(engine, inputs[micro, rank()], targets[micro, rank()])
        engine.backward(loss * RANKS / (ACCUMULATION * RANKS * MICRO_BATCH), last=micro == ACCUMULATION - 1)
    return engine.step()


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest between two sets of weights."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def main() -> None:
    """All configs, one after the other."""
    start_distributed(use_deepspeed=True)
    assert world_size() == RANKS
    found = {}
    wanted = reference()
    for path in sorted(CONFIGS.glob("*.json")):
        engine = prepare(path.name)
        first = engine.gather()
        data = make_data()
        stepped = [update(engine, *batch) for batch in zip(*data, strict=True)]
        after = engine.gather()
        poisoned = data[1][0].clone()
        poisoned[:, 1] = float("nan")  # on rank 1 alone: rank 0 must hear of it
        stepped_on_nan = update(engine, data[0][0], poisoned)
        after_nan = engine.gather()
        if rank() == 0:
            found[path.name] = {
                "sharded": any(hasattr(p, "ds_id") for p in engine.engine.module.parameters()),
                "stage": engine.engine.zero_optimization_stage(),
                "moved": difference(first, wanted),
                "difference": difference(after, wanted),
                "stepped": stepped,
                "stepped_on_nan": stepped_on_nan,
                "moved_by_nan": difference(after, after_nan),
            }
        else:
            assert not after, "weights are gathered on rank 0 alone"
    if rank() == 0:
        Path(sys.argv[-1]).write_text(json.dumps(found))
    stop_distributed()


if __name__ == "__main__":
    launch(main)
