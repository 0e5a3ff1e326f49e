"""What all contenders of benchmarks/ppo.py start from: models, prompts, rollouts to replay; all from fixed seeds."""

import json
from pathlib import Path

import numpy as np
import real_pairs
import shapes
import torch
from safetensors.torch import save_file

PROMPT_TOKENS = (64, 128)
ROWS = 512
NEVER_REPLIED = 2  # pad and eos are the first two ids


def write_inputs(shape: str, folder: Path, pairs: Path, new_tokens: int, seed: int) -> dict:
    """Writes policy/, critic/, reward_model/, value_head.safetensors, rollouts.jsonl; returns what they are.

    Policy, critic and reward model are random, each from a seed of its own, and share a tokenizer.
    """
    texts = real_pairs.read_pairs(pairs)
    tokenizer = shapes.train_shape_tokenizer(shape, (text for pair in texts for text in pair.values()))
    for offset, (name, head) in enumerate(
        {"policy": "causal", "critic": "classifier", "reward_model": "classifier"}.items()
    ):
        shapes.save_shape(shape, folder / name, tokenizer, head, seed + offset)
    width = shapes.read_shape(shape).get("hidden_size") or shapes.read_shape(shape)["n_embd"]
    write_value_head(folder / "value_head.safetensors", width, seed)
    prompts = cut_prompts([pair["chosen"] for pair in texts], tokenizer, seed)
    vocabulary = shapes.read_shape(shape)["vocab_size"]
    write_rollouts(folder / "rollouts.jsonl", prompts, vocabulary, new_tokens, seed)
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


def write_rollouts(path: Path, prompts: list[list[int]], vocabulary: int, new_tokens: int, seed: int) -> None:
    """Prompts with random replies and normal scores. Contenders that sample read the prompts alone."""
    rng = np.random.default_rng(seed + 1)
    with path.open("w", encoding="utf-8") as file:
        for prompt in prompts:
            reply = rng.integers(NEVER_REPLIED, vocabulary, new_tokens).tolist()
            row = {"prompt_ids": prompt, "reply_ids": reply, "score": float(rng.normal())}
            file.write(json.dumps(row) + "\n")


def make_orders(iterations: int, epochs: int, batch: int, seed: int) -> list[list[list[int]]]:
    """A permutation of the batch for each epoch of each iteration."""
    rng = np.random.default_rng(seed + 2)
    return [[rng.permutation(batch).tolist() for _ in range(epochs)] for _ in range(iterations)]
