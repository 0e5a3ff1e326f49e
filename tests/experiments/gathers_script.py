"""Counts what ZeRO-3 gathers: the head in each direction, whatever the number of chunks, and a weight sync's buckets.

Run under a launcher; rank 0 writes what it found to the JSON file that the last argument names. Rank 1 has no token.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import deepspeed
import numpy as np
import torch
from deepspeed.utils import safe_get_full_grad
from transformers import AutoConfig, AutoModelForCausalLM

import ppo.weight_sync
from lmgym.distributed.deepspeed_config import read_config, resolve_config
from lmgym.distributed.deepspeed_engine import Engine, whole_weights
from lmgym.distributed.ranks import rank, start_distributed, stop_distributed, world_size
from lmgym.models.forward import logprobs
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.forward.policies import PolicyModel
from lmgym.runs.launch import launch
from ppo.actor_critic import ActorCritic
from ppo.weight_sync import SamplingPolicy

CONFIGS = Path(__file__).parents[2] / "configs"
SIZE = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
VOCABULARY, ROWS, READS = 97, 5, 9
CHUNK = 4  # tokens


class NoText:
    """A tokenizer's part that is not tested."""

    eos_token_id = None


def make(tied: bool):
    """The same weights each time."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", vocab_size=VOCABULARY, tie_word_embeddings=tied, **SIZE)
    )


def prepare(model: torch.nn.Module) -> Engine:
    """The model under ZeRO-3, which keeps no weight from one use to the next."""
    config = resolve_config(read_config(CONFIGS / "zero3.json"), 1, 1, world_size(), "fp32", 0.0, hidden_size=4)
    config["zero_optimization"] |= {"stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
    return Engine.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), config)


def of_head(tied: bool, trained: bool) -> dict:
    """Gathers of the head in each direction, and the differences from the plain computation."""
    chance = np.random.default_rng(0)
    rows = [chance.integers(2, VOCABULARY, 20).tolist() for _ in range(ROWS)]
    targets = torch.tensor([id_ for row in rows for id_ in row[-READS:]])
    plain = make(tied)
    states = torch.cat([plain(torch.tensor([row])).logits[0, -READS - 1 : -1] for row in rows])
    expected = states.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    weights = torch.linspace(-1, 1, len(targets))
    (expected * weights).sum().backward()

    model = make(tied)
    if not trained:
        model.lm_head.requires_grad_(False)
    engine = prepare(PolicyModel(model))
    head, counts = model.lm_head.weight, Counter()
    direction = "forward"
    for parameter in model.parameters():
        gather = parameter.all_gather_coalesced

        def counting(given, *more, gather=gather, **named):
            counts[direction] += sum(p is head for p in given)
            return gather(given, *more, **named)

        parameter.all_gather_coalesced = counting
    logprobs.CHUNK_LOGITS = CHUNK * VOCABULARY
    mine = rank() == 0
    packed = pack_rows(rows, [READS if mine else 0] * ROWS)
    found = engine(packed, targets if mine else targets[:0])
    gap = float((found.detach() - expected.detach()).abs().max()) if mine else 0.0
    direction = "backward"
    engine.backward((found * weights[: len(found)]).sum() * world_size())
    apart = 0.0
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        if ours.requires_grad:
            gradient = theirs.grad
            apart = max(apart, float((safe_get_full_grad(ours) - gradient).abs().max() / gradient.abs().max()))
    return {**counts, "gap": gap, "gradient": apart}


def of_sync(most: int) -> dict:
    """Gathers of a weight sync in buckets of so many bytes, and whether the copy has the trained weights."""
    actor = ActorCritic(make(False), has_values=False)
    sampler = SamplingPolicy(actor, NoText(), "fp32", sharded=True, under_deepspeed=True, rows=4)
    engine = prepare(actor)
    for parameter in sampler.policy.parameters():
        parameter.data.zero_()
    entered = [0]
    gathered = deepspeed.zero.GatheredParameters

    class Counted(gathered):
        def __enter__(self):
            entered[0] += 1
            return super().__enter__()

    ppo.weight_sync.BUCKET_BYTES, deepspeed.zero.GatheredParameters = most, Counted
    sampler.sync()
    deepspeed.zero.GatheredParameters = gathered
    whole = whole_weights(engine.module)  # on rank 0
    names = [name for name, _ in sampler.policy.named_parameters()]
    own = dict(sampler.policy.named_parameters())
    same = all(torch.equal(own[name], whole[f"policy.{name}"]) for name in names) if whole else True
    sizes = [own[name].nbytes for name in names]
    return {"entered": entered[0], "same": same, "weights": len(names), "bytes": sum(sizes), "largest": max(sizes)}


def main() -> None:
    """All of them."""
    start_distributed(use_deepspeed=True)
    found = {f"{tied} {trained}": of_head(tied, trained) for tied in (True, False) for trained in (True, False)}
    found |= {"one": of_sync(1), "several": of_sync(32 * 1024), "all": of_sync(1 << 28)}
    if rank() == 0:
        Path(sys.argv[-1]).write_text(json.dumps(found))
    stop_distributed()


if __name__ == "__main__":
    launch(main)
