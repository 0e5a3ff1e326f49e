"""Samples for reward functions, and the rewards they gave."""

from collections.abc import Sequence
from typing import Any

from lmgym.environments.protocol import Sample, SampleReward, ScoreRequest
from lmgym.generation.protocol import Completion
from lmgym.text import Conversation, Turn


def sample(text: str, tokens: int = 2, prompt: Conversation | str = "Say: ", **columns: Any) -> Sample:
    completion = Completion(text, "eos", tuple(range(tokens)), (0.0,) * tokens, tokens)
    return Sample(ScoreRequest("policy", prompt, text, columns), "Say: ", completion)


def chats(*texts: str) -> list[Sample]:
    return [sample(text, prompt=Conversation((Turn("user", f"hi {i}"),))) for i, text in enumerate(texts)]


def rewards_of(rewards: Sequence[SampleReward]) -> list[Any]:
    return [one.reward for one in rewards]
