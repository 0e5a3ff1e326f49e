"""The model by the name that experiments of the first lmgym (2023) import."""

import secrets
from typing import Any

PARAMS: dict[str, Any] = {
    "temperature": 0.72,
    "repetition_penalty": 1.13125,
    "max_new_tokens": 64,
    "top_p": 0.725,
    "top_k": 0,
}
IGNORED = ("do_sample", "eos_token_id")  # it samples, and a reply is a line


class GPTJ:
    """GPT-J, or another model without a chat template, which goes on from a text by a line."""

    def __init__(self, params: dict[str, Any] | None = None, model_name: str = "EleutherAI/gpt-j-6b") -> None:
        from lmgym.generation.local_generation import load_causal
        from lmgym.generation.protocol import Sampling

        given = {name: value for name, value in (params or PARAMS).items() if name not in IGNORED}
        self.sampling = Sampling(**given, stop=("\n",))
        self._generator = load_causal(model_name)

    def predict(self, text: str, best_of: int = 4) -> list[str]:
        """`best_of` lines that may follow the text, of which the last tokens that fit into the context are read."""
        from dataclasses import replace

        generator = self._generator
        ids = generator.tokenizer(text, add_special_tokens=False).input_ids
        ids = ids[-(generator.max_length - self.sampling.max_new_tokens) :]
        sampling = replace(self.sampling, seed=secrets.randbelow(2**31))
        [found] = generator.generate([ids], best_of, sampling)
        return [one.text.rstrip() for one in found]
