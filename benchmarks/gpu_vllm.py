"""Generation by a vLLM server of one's own beside lmgym's engine: the same shapes, prompts and lengths of on_gpu.py.

The server runs where `lmgym engine setup` has made its environment. Its weights are random ones of the shape, saved to
a folder first, and its replies take the way of a run: a request for each, token ids in and out, log-probabilities too.
"""

import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_training import NEW_TOKENS, PROMPT
from model_costs import Shape, Way, generation_bytes
from roofs import seconds_of
from shapes import random_model, read_shape
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from lmgym.generation.protocol import Sampling
from lmgym.generation.vllm_generator import VLLMGenerator
from lmgym.generation.vllm_server import ServerOptions, VLLMServer


def save_random(name: str, folder: Path, device: torch.device) -> PreTrainedTokenizerFast:
    """A random model of the shape, in bf16 on a GPU and else in fp32, beside a tokenizer whose words are numbers."""
    size = Shape.of(read_shape(name)).vocabulary
    words = models.WordLevel({str(number): number for number in range(size)}, unk_token="0")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), pad_token="0", eos_token="1")
    model = random_model(name, tokenizer, "causal", 0, str(device))
    if device.type == "cuda":
        model.to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


def measure_vllm(name: str, batches: list[int], roofs: dict[str, float], device: torch.device) -> list[dict[str, Any]]:
    """As `measure_generation`, by a vLLM server; without its first batch, which warms it up."""
    shape, found = Shape.of(read_shape(name)), []
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as temporary:
        tokenizer = save_random(name, Path(temporary), device)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # the server's now
        options = ServerOptions(temporary, str(dtype).removeprefix("torch."), PROMPT + NEW_TOKENS)
        with VLLMServer(options, Path(temporary, "vllm.log")) as server:
            for rows in batches:
                prompts = rng.integers(2, shape.vocabulary, (rows, PROMPT)).tolist()
                generator = VLLMGenerator([server.url], "model", tokenizer, [1], PROMPT + NEW_TOKENS, concurrency=rows)

                def sample(seed: int, generator=generator, prompts=prompts) -> None:
                    # other prompts each time: a server keeps the keys and values of those that it has seen
                    fresh = [[2 + (id_ + seed) % (shape.vocabulary - 2) for id_ in row] for row in prompts]
                    replies = generator.generate(fresh, 1, Sampling(NEW_TOKENS, seed=seed, ends_at_eos=False))
                    assert all(len(reply[0].ids) == NEW_TOKENS for reply in replies)

                sample(1)
                seconds = seconds_of(lambda: sample(2), device)
                read = generation_bytes(shape, Way("whole"), [PROMPT] * rows, NEW_TOKENS, dtype.itemsize)
                found.append({
                    "rows": rows, "prompt": PROMPT, "new_tokens": NEW_TOKENS, "seconds": seconds,
                    "tokens_per_second": rows * NEW_TOKENS / seconds,
                    "share_of_bandwidth": read / seconds / roofs["bytes_per_second"],
                })  # fmt: skip
    return found
