"""What generates replies, whatever stands behind it: a local model, a server, a script, or the best of several.

A `Generator` answers conversations. One whose `capabilities.token_ids` is true has `generate` too, token ids in and
out, with the log-probabilities of the sampler, as reinforcement learning needs them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from lmgym.errors import (
    MOST_TEMPERATURE,
    MOST_TOGETHER,
    MOST_TOKENS,
    Bound,
    InputError,
    count_bound,
    refuse_out_of_bounds,
)
from lmgym.text import Conversation

FinishReason = Literal["eos", "stop", "length"]
GENERATION_CONFIG = "generation_config.json"
OWN = ("temperature", "top_k", "top_p", "repetition_penalty")  # of a model's generation config, what we read
Progress = Callable[[int, int], None]
"""called as tokens come: (tokens made so far in the longest reply, of at most)"""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The order of steps is transformers': penalty, temperature, top-k, top-p."""

    max_new_tokens: int = 64
    temperature: float = 1.0
    """logits are divided by it; 0 takes the likeliest token"""
    top_k: int = 0
    """only the k likeliest tokens; 0: all"""
    top_p: float = 1.0
    """only the fewest likeliest tokens whose probabilities sum to p"""
    repetition_penalty: float = 1.0
    """logits of tokens that the text holds are divided by it where positive, multiplied where negative (Keskar 2019)"""
    stop: tuple[str, ...] = ()
    """a reply ends before the first of these"""
    ends_at_eos: bool = True
    seed: int | tuple[int, ...] = 0
    """of the request's first prompt, one more for each that follows; or one for each"""

    def __post_init__(self) -> None:
        penalty, of_strings = self.repetition_penalty, all(self.stop) and not isinstance(self.stop, str)
        seeds = self.seed if isinstance(self.seed, tuple) else (self.seed,)
        heat, hottest = self.temperature, MOST_TEMPERATURE
        refuse_out_of_bounds((
            count_bound("max_new_tokens", self.max_new_tokens, MOST_TOGETHER),
            Bound("temperature", heat, 0 <= heat <= hottest, f"0 (greedy) or more; at most {hottest}"),
            Bound("top_k", self.top_k, 0 <= self.top_k <= MOST_TOKENS, f"0 (all) or more; at most {MOST_TOKENS:,}"),
            Bound("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1 (all)"),
            Bound("repetition_penalty", penalty, 0 < penalty <= 100, "above 0; 1 is none; at most 100"),
            Bound("stop", self.stop, of_strings, "strings that are not empty, in a tuple"),
            Bound("seed", self.seed, all(0 <= seed < 2**64 for seed in seeds), "0 or more, below 2^64"),
        ))  # fmt: skip

    def __str__(self) -> str:
        """For people: the temperature, and which of the other settings are in use."""
        parts = {"top_p": self.top_p < 1, "top_k": self.top_k > 0, "repetition_penalty": self.repetition_penalty != 1}
        if self.temperature == 0:
            parts |= {"top_p": False, "top_k": False}
        first = f"temperature {self.temperature:g}" if self.temperature else "greedy"
        return ", ".join([first, *(f"{name} {getattr(self, name):g}" for name, used in parts.items() if used)])

    @property
    def truncates(self) -> bool:
        """Whether the sampled distribution differs from the model's at this temperature."""
        return self.top_k > 0 or self.top_p < 1 or self.repetition_penalty != 1


@dataclass(frozen=True)
class Completion:
    """One reply. `ids` are all sampled tokens, an eos included; `text` is without eos and stop string.

    `logprobs` are of each id under the model at the sampling temperature (1 where greedy), before top-k, top-p and
    penalty. A backend without ids leaves both empty.
    """

    text: str
    finish_reason: FinishReason
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tokens: int = 0
    """how many were made"""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can give; who needs more refuses early."""

    token_ids: bool = False
    logprobs: bool = False


class Generator(Protocol):
    """Replies to conversations."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can give."""
        ...

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, independent of each other and of what else is asked for."""
        ...


def sampling_from_config(config: Any, default: Sampling) -> tuple[Sampling, str]:
    """How a model's folder says that it is sampled, and where that is said, for people; else `default`.

    `config` is transformers' GenerationConfig, or None. Where it says anything, what it leaves out is neutral.
    Raises InputError for settings out of bounds.
    """
    said = config.to_diff_dict() if config is not None else {}
    own = {name: said[name] for name in OWN if said.get(name) is not None}
    if not own and not said.get("do_sample"):
        return default, "defaults"
    neutral = {name: getattr(Sampling(), name) for name in OWN}
    try:
        return replace(default, **neutral | own), GENERATION_CONFIG
    except (InputError, TypeError) as error:
        raise InputError(f"{GENERATION_CONFIG} of the model: {error}; mend the file") from error


def seeds_of(sampling: Sampling, prompts: int) -> list[int]:
    """The seed of each prompt of a request: prompt i alone with seed + i, or with its own, gives the same replies.

    Raises InputError where there are several seeds and another number of prompts.
    """
    if isinstance(sampling.seed, int):
        return [sampling.seed + i for i in range(prompts)]
    if len(sampling.seed) != prompts:
        raise InputError(f"{len(sampling.seed)} seeds for {prompts} prompts; needed: one, or one for each")
    return list(sampling.seed)


@dataclass(frozen=True)
class ScriptedGenerator:
    """Replies by a function of (conversation, random generator), or out of a list; for tests and baselines."""

    script: Callable[[Conversation, np.random.Generator], str] | Sequence[str]
    capabilities: Capabilities = Capabilities()

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """Each by a generator of its own, seeded as sampling is."""
        seeds = seeds_of(sampling, len(conversations))
        return [
            [self._one(conversation, np.random.default_rng([seed, reply])) for reply in range(n)]
            for conversation, seed in zip(conversations, seeds, strict=True)
        ]

    def _one(self, conversation: Conversation, rng: np.random.Generator) -> Completion:
        script = self.script
        text = script(conversation, rng) if callable(script) else script[int(rng.integers(len(script)))]
        return Completion(text, "eos", tokens=len(text.split()))
