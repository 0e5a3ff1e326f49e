"""Inputs of all contenders of benchmarks/ppo.py: models, prompts, rollouts to replay; all from fixed seeds."""

import json
from pathlib import Path

import numpy as np
import real_pairs
import shapes
import torch
from safetensors.torch import save_file

from lmgym.models.loading import load_config, load_tokenizer

PROMPT_TOKENS = (64, 128)
ROWS = 512


def write_inputs(source: str | Path, folder: Path, pairs: Path, new_tokens: int, seed: int) -> dict:
    """Writes policy/, critic/, reward_model/, value_head.safetensors, rollouts.jsonl; returns what they are.

    Of a shape's name all three models are random, each from a seed of its own; of a causal model's folder only the
    heads of critic and reward model are. They share a tokenizer.
    """
    texts = real_pairs.read_pairs(pairs)
    real = isinstance(source, Path)
    tokenizer = None if real else shapes.train_shape_tokenizer(source, (t for pair in texts for t in pair.values()))
    for offset, (name, head) in enumerate(
        {"policy": "causal", "critic": "classifier", "reward_model": "classifier"}.items()
    ):
        if real:
            shapes.save_real(source, folder / name, head, seed + offset)
        else:
            shapes.save_shape(source, folder / name, tokenizer, head, seed + offset)
    config, tokenizer = load_config(str(folder / "policy")), load_tokenizer(str(folder / "policy"))
    write_value_head(folder / "value_head.safetensors", config.hidden_size, seed)
    prompts = cut_prompts([pair["chosen"] for pair in texts], tokenizer, seed)
    ids = range(1 + max(tokenizer.pad_token_id, tokenizer.eos_token_id), config.vocab_size)  # neither is replied
    write_rollouts(folder / "rollouts.jsonl", prompts, ids, new_tokens, seed)
    lengths = [len(prompt) for prompt in prompts]
    return {"prompts": len(prompts), "prompt_tokens": [min(lengths), max(lengths)], "mean": float(np.mean(lengths))}


def write_value_head(path: Path, width: int, seed: int) -> None:
    """Linear(d, 2d) - ReLU - Linear(2d, 1) whose last layer is zero, so that values start at 0."""
    torch.manual_seed(seed)
    first = torch.nn.Linear(width, 2 * width)
    last = {"2.weight": torch.zeros(1, 2 * width), "2.bias": torch.zeros(1)}
    save_file({"0.weight": first.weight.data, "0.bias": first.bias.data, **last}, path)


def cut_prompts(texts: list[str], tokenizer, seed: int) -> list[list[int]]:
    """Beginnings of real texts, as token ids; lengths are uniform."""
    rng, prompts = np.random.default_rng(seed), []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) >= PROMPT_TOKENS[1]:
            prompts.append(ids[: rng.integers(PROMPT_TOKENS[0], PROMPT_TOKENS[1] + 1)])
        if len(prompts) == ROWS:
            return prompts
    raise ValueError(f"only {len(prompts)} texts of {PROMPT_TOKENS[1]} tokens; {ROWS} are needed")


def write_rollouts(path: Path, prompts: list[list[int]], ids: range, new_tokens: int, seed: int) -> None:
    """Prompts with random replies and normal scores. Contenders that sample read the prompts alone."""
    rng = np.random.default_rng(seed + 1)
    with path.open("w", encoding="utf-8") as file:
        for prompt in prompts:
            reply = rng.integers(ids.start, ids.stop, new_tokens).tolist()
            row = {"prompt_ids": prompt, "reply_ids": reply, "score": float(rng.normal())}
            file.write(json.dumps(row) + "\n")


def make_orders(iterations: int, epochs: int, batch: int, seed: int) -> list[list[list[int]]]:
    """A permutation of the batch for each epoch of each iteration."""
    rng = np.random.default_rng(seed + 2)
    return [[rng.permutation(batch).tolist() for _ in range(epochs)] for _ in range(iterations)]
