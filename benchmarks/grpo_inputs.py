"""Rollouts of benchmarks/grpo.py: groups of replies that a causal model has sampled, with made-up scores."""

import json
from pathlib import Path

import numpy as np
import real_pairs
from ppo_inputs import cut_prompts

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer

PROMPTS = 16
REPLY_TOKENS = (8, 96)


def write_rollouts(model: Path, path: Path, pairs: Path, generations: int, seed: int) -> dict:
    """Writes JSONL of prompt_ids, reply_ids and score, a group's rows in succession; returns what they are.

    Prompts are beginnings of real texts, replies are sampled; lengths of both are uniform. Scores are normal.
    """
    tokenizer = load_tokenizer(str(model))
    texts = [pair["chosen"] for pair in real_pairs.read_pairs(pairs)]
    prompts = cut_prompts(texts, tokenizer, seed)[:PROMPTS]
    generator = LocalGenerator(load_policy(str(model), tokenizer), tokenizer)
    groups = generator.generate(prompts, generations, Sampling(REPLY_TOKENS[1], 1.0, seed=seed, ends_at_eos=False))
    rng, lengths = np.random.default_rng(seed + 1), []
    with path.open("w", encoding="utf-8") as file:
        for prompt, replies in zip(prompts, groups, strict=True):
            for reply in replies:
                ids = list(reply.ids)[: rng.integers(REPLY_TOKENS[0], REPLY_TOKENS[1] + 1)]
                row = {"prompt_ids": prompt, "reply_ids": ids, "score": float(rng.normal())}
                file.write(json.dumps(row) + "\n")
                lengths.append((len(prompt), len(ids)))
    of_prompts, of_replies = np.array(lengths).T
    return {
        "rows": len(lengths),
        "prompt_tokens": [int(of_prompts.min()), int(of_prompts.max()), float(of_prompts.mean())],
        "reply_tokens": [int(of_replies.min()), int(of_replies.max()), float(of_replies.mean())],
    }
