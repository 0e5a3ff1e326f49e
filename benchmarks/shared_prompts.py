"""GRPO's forward, and forward with backward, where replies to a prompt share it and where each runs it again.

    python benchmarks/shared_prompts.py outputs/models/smollm2-135m

Four groups of eight replies of random ids, of a quarter of the length to all of it; one thread; the two ways take
turns, medians of three, CPU seconds. `top` trains so many layers from above (0: all).
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from launched import ROOT

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from lmgym.models.config_fields import layer_count
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from ppo.actor_critic import ActorCritic
from ppo.config import PPOConfig
from ppo.rollouts import Rollouts, RowBatch, gather

CASES = ((37, 48, 0, False), (37, 48, 0, True), (37, 48, 2, True), (256, 64, 0, True), (512, 64, 0, True))
"""(tokens of a prompt, most tokens of a reply, `top`, bf16)"""
GROUPS, REPLIES, TIMES = 4, 8, 3


def episodes(prompt_tokens: int, most: int) -> Iterator[Episode]:
    draw = np.random.default_rng(0)
    for group in range(GROUPS):
        prompt = draw.integers(100, 40_000, prompt_tokens).tolist()
        for member in range(REPLIES):
            ids = tuple(draw.integers(100, 40_000, int(draw.integers(most // 4, most + 1))).tolist())
            reply = Completion("", "stop", ids, (-1.0,) * len(ids), len(ids))
            yield Episode(group * REPLIES + member, "policy", [Step(prompt, "", reply, 1.0)], True, False, None, {})


def seconds(actor: ActorCritic, rollouts: Rollouts, trains: bool, bf16: bool) -> float:
    """CPU seconds of all micro-batches of eight rows."""
    actor.zero_grad()
    began = time.process_time()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16), torch.set_grad_enabled(trains):
        for rows in rollouts.tree.batches(np.arange(GROUPS * REPLIES), REPLIES):
            batch = RowBatch.of(rollouts, rows, torch.device("cpu"))
            found = actor(batch.rows, batch.targets)[0].sum()
            if trains:
                found.backward()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    model = parser.parse_args().model
    torch.set_num_threads(1)
    for prompt, most, top, bf16 in CASES:
        policy = load_policy(model, load_tokenizer(model))
        actor = ActorCritic(policy, frozen_layers=layer_count(policy.config) - top if top else 0, has_values=False)
        shared = gather(list(episodes(prompt, most)), PPOConfig("shared"))
        ways = {"each runs its prompt": replace(shared, shared=False), "a group's prompt once": shared}
        for trains in (False, True):
            taken: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(TIMES):
                for way, rollouts in ways.items():
                    taken[way].append(seconds(actor, rollouts, trains, bf16))
            before, after = (median(found) for found in taken.values())
            what = "forward and backward" if trains else "forward"
            kind = f"prompt {prompt}, replies up to {most}, top {top}, {'bf16' if bf16 else 'fp32'}"
            print(f"{kind}, {what}: {before:.2f} -> {after:.2f} CPU s, {before / after:.2f} times", flush=True)


if __name__ == "__main__":
    main()
