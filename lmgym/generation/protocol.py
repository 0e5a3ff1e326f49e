"""The interface of generators (a local model, a server, a script, best-of-n) and the settings of sampling.

A `Generator` replies to conversations. A `TokenGenerator` takes and returns token ids, with the sampler's
log-probabilities, as reinforcement learning needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np

from lmgym.config import Range, check_ranges
from lmgym.errors import MOST_TEMPERATURE, MOST_TOGETHER, MOST_TOKENS, InputError, shown
from lmgym.generation.thoughts import split_thought
from lmgym.text import Conversation

FinishReason = Literal["eos", "stop", "length"]
GENERATION_CONFIG = "generation_config.json"
CONFIG_FIELDS = ("temperature", "top_k", "top_p", "repetition_penalty")  # read from a generation config
Progress = Callable[[int, int], None]
"""called with (tokens generated so far in the longest reply, their maximum)"""


@dataclass(frozen=True)
class Sampling:
    """Settings of sampling, applied in the order of transformers: penalty, temperature, top-k, top-p."""

    max_new_tokens: Annotated[int, Range(1, MOST_TOGETHER)] = 64
    temperature: Annotated[float, Range(0, MOST_TEMPERATURE, hint="0 is greedy")] = 1.0
    """logits are divided by it; 0 is greedy"""
    top_k: Annotated[int, Range(0, MOST_TOKENS, hint="0 keeps all tokens")] = 0
    """only the k likeliest tokens; 0: all"""
    top_p: Annotated[float, Range(0, 1, above=True, hint="1 keeps all tokens")] = 1.0
    """only the fewest likeliest tokens whose probabilities sum to p"""
    repetition_penalty: Annotated[float, Range(0, 100, above=True, hint="1 is none")] = 1.0
    """positive logits of tokens already in the text are divided by it, negative ones multiplied (Keskar 2019)"""
    stop: tuple[str, ...] = ()
    """a reply ends before the first of these strings"""
    ends_at_eos: bool = True
    seed: int | tuple[int, ...] = 0
    """of the first prompt, one more for each that follows; or a seed for each prompt"""

    def __post_init__(self) -> None:
        check_ranges(self)
        if isinstance(self.stop, str) or not all(self.stop):
            raise InputError(f"stop={shown(self.stop)}; needed: strings that are not empty, in a tuple")
        if not all(0 <= seed < 2**64 for seed in (self.seed if isinstance(self.seed, tuple) else (self.seed,))):
            raise InputError(f"seed={shown(self.seed)}; needed: 0 or more, below 2^64")

    def __str__(self) -> str:
        """The temperature and the other settings that are in use, for display."""
        in_use = {
            "top_p": self.top_p < 1 and self.temperature > 0,
            "top_k": self.top_k > 0 and self.temperature > 0,
            "repetition_penalty": self.repetition_penalty != 1,
        }
        first = f"temperature {self.temperature:g}" if self.temperature else "greedy"
        return ", ".join([first, *(f"{name} {getattr(self, name):g}" for name, used in in_use.items() if used)])

    def with_stops(self, stops: tuple[str, ...]) -> "Sampling":
        """The same with further stop strings, where a reply ends at its end at all."""
        return replace(self, stop=(*self.stop, *stops)) if stops and self.ends_at_eos else self

    def find_stop(self, text: str) -> int | None:
        """Index in the text of the first stop string; None if there is none."""
        return min((index for stop in self.stop if (index := text.find(stop)) >= 0), default=None)


@dataclass(frozen=True)
class Candidates:
    """The actions that an observation lists, as a policy over them reads them; see lmgym/generation/actions.py."""

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    """of each, with its end of turn"""
    divisors: tuple[float, ...]
    """of the sums of their tokens' log-probabilities"""


@dataclass(frozen=True)
class Choice:
    """The candidates of a policy over actions, and its choice."""

    candidates: Candidates
    chosen: int
    """number of the candidate"""
    entropy: float
    """nats, of the distribution over the candidates"""


@dataclass(frozen=True)
class LikelyTokens:
    """The token of one place of a reply, and log-probabilities of the likeliest tokens there, by their texts."""

    token: str
    logprobs: Mapping[str, float]


@dataclass(frozen=True)
class Completion:
    """One reply. `ids` are all sampled tokens, including an eos; `text` excludes eos and stop string.

    `logprobs` are those of each id under the model at the sampling temperature (1 if greedy), before top-k, top-p and
    penalty. A backend without ids leaves both empty. With a `choice`, `logprobs` has one number, the action's.
    """

    text: str
    finish_reason: FinishReason
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    tokens: int = 0
    """number of tokens generated"""
    choice: Choice | None = None
    """of a policy over actions"""
    likely: tuple[LikelyTokens, ...] = ()
    """by place, of a server that was asked for them"""
    reasoning: str = ""
    """what a server's parser set aside; such a reply's `text` is its answer alone"""
    withheld: str = ""
    """why a server gave no reply, in its own words: a content filter, a refusal; the text is empty then"""

    @property
    def answer(self) -> str:
        """The text without the model's thoughts."""
        return split_thought(self.text).answer

    @property
    def thought(self) -> str:
        """The model's thoughts, whether a server's parser set them aside or they stand in the text."""
        return "\n\n".join(filter(None, (self.reasoning, split_thought(self.text).thought)))


Each = Callable[[int, list[Completion]], None]
"""called with the number of a conversation and its replies"""


class Generator(Protocol):
    """A source of replies."""

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, independent of each other and of the rest of the request."""
        ...


class TokenGenerator(Protocol):
    """A source of replies with token ids in and out, for agents that are trained."""

    @property
    def max_length(self) -> int:
        """Most tokens of a prompt and its reply together."""
        ...

    def generate(self, prompts: Sequence[list[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """n completions of each prompt."""
        ...


def sampling_from_config(config: Any, default: Sampling) -> tuple[Sampling, str]:
    """(the sampling that a model's generation config sets, the file's name), or (`default`, "defaults") if none.

    `config` is transformers' GenerationConfig, or None. Fields that it leaves out are neutral. Raises InputError for
    settings out of bounds.
    """
    settings = config.to_diff_dict() if config is not None else {}
    sampling = {name: settings[name] for name in CONFIG_FIELDS if settings.get(name) is not None}
    if not sampling and not settings.get("do_sample"):
        return default, "defaults"
    neutral = {name: getattr(Sampling(), name) for name in CONFIG_FIELDS}
    try:
        return replace(default, **neutral | sampling), GENERATION_CONFIG
    except (InputError, TypeError) as error:
        raise InputError(f"{GENERATION_CONFIG} of the model: {error}; correct the file") from error


def seeds_of(sampling: Sampling, prompts: int) -> list[int]:
    """The seed of each prompt: `seed + i`, or the i-th seed. Prompt i alone with that seed gets the same replies.

    Raises InputError for several seeds and a different number of prompts.
    """
    if isinstance(sampling.seed, int):
        return [sampling.seed + i for i in range(prompts)]
    if len(sampling.seed) != prompts:
        raise InputError(f"{len(sampling.seed)} seeds for {prompts} prompts; needed: one, or one for each")
    return list(sampling.seed)


ReplyScript = Callable[[Conversation, np.random.Generator], str]


@dataclass(frozen=True)
class ScriptedGenerator:
    """Replies by a function of (conversation, random generator), or drawn from a list; for tests and baselines."""

    script: ReplyScript | Sequence[str]

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation; each reply has its own random generator, seeded by the sampling."""
        seeds = seeds_of(sampling, len(conversations))
        return [
            [self._reply_once(conversation, np.random.default_rng([seed, reply])) for reply in range(n)]
            for conversation, seed in zip(conversations, seeds, strict=True)
        ]

    def _reply_once(self, conversation: Conversation, rng: np.random.Generator) -> Completion:
        script = self.script
        text = script(conversation, rng) if callable(script) else script[int(rng.integers(len(script)))]
        return Completion(text, "eos", tokens=len(text.split()))
