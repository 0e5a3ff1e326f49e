"""Any causal model by folder or hub id: our own sampler where its family is tested, else transformers' generate."""

from collections.abc import Sequence
from typing import Any, final

import torch
from transformers import AutoModelForCausalLM, StoppingCriteria

from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Capabilities, Completion, Generator, Progress, Sampling, seeds_of
from lmgym.models.finite_weights import refuse_non_finite_weights
from lmgym.models.loading import SCORER_HEADS, context_length, load_tokenizer
from lmgym.models.sources import refuse_pickles, source_arguments
from lmgym.text import Conversation, render_all, tokenize_texts


def load_causal(name: str) -> Generator:
    """A generator of that model, in bf16 on a GPU and in fp32 elsewhere. Raises InputError where it does not load."""
    refuse_pickles(name)
    tokenizer = load_tokenizer(name)
    on_gpu = torch.cuda.is_available()
    found: Any
    try:
        found = AutoModelForCausalLM.from_pretrained(
            **source_arguments(name),
            dtype=torch.bfloat16 if on_gpu else torch.float32,
            use_safetensors=True,
            output_loading_info=True,
        )
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"no causal model loads from {name}: {first}") from error
    model, info = found
    # with tied embeddings nothing is missing, but a head that is not used says what the folder is
    odd = sorted(info["missing_keys"]) or sorted(k for k in info["unexpected_keys"] if k.startswith(SCORER_HEADS))
    if odd:
        lacks = "lacks" if info["missing_keys"] else "has"
        raise InputError(f"{name} is no causal model: it {lacks} {odd[0]} ({len(odd)} such); a scorer cannot talk")
    refuse_non_finite_weights(model, name)
    model = model.to("cuda" if on_gpu else "cpu").eval()
    try:
        return LocalGenerator(model, tokenizer)
    except InputError:
        return PlainGenerator(model, tokenizer)


@final
class PlainGenerator:
    """transformers' generate, a conversation at a time; for families that LocalGenerator does not know."""

    capabilities = Capabilities()

    def __init__(self, model, tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.max_length = context_length(model.config)

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, as the tokenizer's chat template renders it."""
        prompts = tokenize_texts(self.tokenizer, render_all(self.tokenizer, conversations))
        pairs = zip(prompts, seeds_of(sampling, len(prompts)), strict=True)
        return [self._replies(ids, n, sampling, seed, progress) for ids, seed in pairs]

    def _replies(
        self, prompt: list[int], n: int, sampling: Sampling, seed: int, progress: Progress | None
    ) -> list[Completion]:
        if len(prompt) + sampling.max_new_tokens > self.max_length:
            raise InputError(
                f"the prompt has {len(prompt)} tokens and max_new_tokens is {sampling.max_new_tokens}; the model reads "
                f"{self.max_length}: shorten the one or the other"
            )
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.inference_mode():
            torch.manual_seed(seed)
            ids = torch.tensor([prompt], device=device)
            found = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                pad_token_id=self._eos()[0] if self._eos() else 0,  # a pad token of ours has no embedding
                stopping_criteria=[_Watch(len(prompt), sampling.max_new_tokens, progress)],
                **self._settings(n, sampling),
            )
        rows = found[:, len(prompt) :].tolist()
        return [self._completion(row, sampling) for row in (rows if sampling.temperature else rows * n)]

    def _settings(self, n: int, sampling: Sampling) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens,
            "repetition_penalty": sampling.repetition_penalty,
            "do_sample": sampling.temperature > 0,
        }
        if sampling.temperature > 0:
            settings |= {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
            settings["num_return_sequences"] = n
        if sampling.stop:
            settings |= {"stop_strings": list(sampling.stop), "tokenizer": self.tokenizer}
        if not sampling.ends_at_eos:
            settings["eos_token_id"] = None
        return settings

    def _eos(self) -> list[int]:
        eos = self.model.generation_config.eos_token_id
        eos = self.tokenizer.eos_token_id if eos is None else eos
        return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    def _completion(self, row: list[int], sampling: Sampling) -> Completion:
        ends = [row.index(eos) for eos in self._eos() if eos in row] if sampling.ends_at_eos else []
        end = min(ends, default=len(row))
        text = self.tokenizer.decode(row[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        stops = [place for stop in sampling.stop if (place := text.find(stop)) >= 0]
        if stops:
            return Completion(text[: min(stops)], "stop", tokens=end)
        return Completion(text, "eos" if ends else "length", tokens=min(len(row), end + 1))


class _Watch(StoppingCriteria):
    """Stops nothing; tells how many tokens were made."""

    def __init__(self, prompt: int, most: int, progress: Progress | None) -> None:
        self.prompt, self.most, self.progress = prompt, most, progress

    def __call__(self, input_ids, scores, **kwargs):
        if self.progress:
            self.progress(input_ids.shape[1] - self.prompt, self.most)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
