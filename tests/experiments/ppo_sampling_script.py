"""A hundred rollout phases under ZeRO-3: ranks sample other numbers of other lengths; then an update.

Run under a launcher: the model's folder, and the JSON file to which rank 0 writes what was found.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.distributed.deepspeed_config import read_config
from lmgym.distributed.deepspeed_engine import whole_weights
from lmgym.distributed.ranks import all_gather_objects, rank, start_distributed, stop_distributed
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.loading import load_tokenizer
from lmgym.runs.launch import launch
from ppo.config import PPOConfig
from ppo.setup import build, make_engine
from ppo.weight_sync import SamplingPolicy

PHASES = 100
CONFIGS = Path(__file__).parents[2] / "configs"


def main() -> None:
    """All phases; the same words on every rank, the lengths of its own."""
    deepspeed = read_config(CONFIGS / "zero3.json")
    start_distributed(use_deepspeed=True)
    tokenizer = load_tokenizer(sys.argv[-2])
    config = PPOConfig(
        "sampling", ModelConfig(sys.argv[-2], precision="fp32"), optimizer=OptimizerConfig(1e-3, micro_batch=2)
    )
    actor, _ = build(config, tokenizer)
    before = actor.policy.get_input_embeddings().weight.detach().clone()
    sampler = SamplingPolicy(actor, tokenizer, "fp32", sharded=True, under_deepspeed=True, rows=4)
    engine = make_engine(config, actor, deepspeed)
    engine.set_learning_rate(1e-3)
    chance, tokens, largest = np.random.default_rng(rank()), 0, 0.0
    for phase in range(PHASES):
        sampler.sync()
        prompts = [chance.integers(5, 500, size=chance.integers(1, 9)).tolist() for _ in range(chance.integers(1, 7))]
        sampling = Sampling(int(chance.integers(1, 40)), seed=1000 * phase + rank())
        replies = [one for [one] in sampler.generator.generate(prompts, 1, sampling)]
        tokens += sum(len(one.ids) for one in replies)
        # one forward a phase for all, of what this rank has
        laid = pack_rows(
            [p + list(r.ids) for p, r in zip(prompts, replies, strict=True)], [len(r.ids) for r in replies]
        )
        found, values, _ = engine(laid, torch.tensor([id_ for one in replies for id_ in one.ids]))
        sampled = torch.tensor([x for one in replies for x in one.logprobs])
        largest = max(largest, float((found.detach() - sampled).abs().max()))
        engine.backward(-found.mean() + values.square().mean())
        assert engine.step()
    words = whole_weights(engine.module).get("policy.transformer.wte.weight", before)  # rank 0 has it
    moved = max(all_gather_objects(float((words - before).abs().max())))
    said = all_gather_objects({"phases": PHASES, "tokens": tokens, "largest_gap": largest, "moved": moved})
    if rank() == 0:
        Path(sys.argv[-1]).write_text(json.dumps(said))
    stop_distributed()


if __name__ == "__main__":
    launch(main)
