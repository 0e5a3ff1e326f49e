"""Rewards by scorers: the weighted sum of their normalised scores. A failed reward is None, never 0."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmgym.environments.protocol import Sample, SampleReward
from lmgym.errors import InputError
from lmgym.scoring.moments import moments_of, sums_of
from lmgym.scoring.protocol import Scorer
from lmgym.scoring.retries import RetryPolicy, RewardResult, call_with_retries, read_number
from lmgym.scoring.scorers import HFScorer, TextCounts
from lmgym.text import Conversation, reply_text


@dataclass(frozen=True)
class ScorerReward:
    """The weighted sum of scores, each normalised to mean 0 and std 1 and then clipped.

    Scores of weight 0 are only logged. Raises InputError for names that differ and for numbers out of bounds.
    """

    scorers: Mapping[str, Scorer]
    weights: Mapping[str, float]
    moments: Mapping[str, tuple[float, float]] | None = None
    """mean and std of each scorer over reference replies (`reference_moments`); None: scores as they are"""
    clip: float | None = 10.0
    """largest absolute value of a normalised score; None: no limit"""
    timeout: float | None = None
    """seconds a scorer may take for a batch; None: no limit, and no thread"""
    retries: int = 2

    def __post_init__(self) -> None:
        RetryPolicy(self.timeout, self.retries)
        moments = self.scorers if self.moments is None else self.moments
        for name, given in (("weights", self.weights), ("moments", moments)):
            if set(given) != set(self.scorers) or not given:
                raise InputError(f"{name} for {sorted(given)}; needed: for each of the scorers, {sorted(self.scorers)}")
        if not any(self.weights.values()) or not all(map(math.isfinite, self.weights.values())):
            raise InputError(f"weights {dict(self.weights)}; needed: finite numbers, not all 0")
        for name, (mean, std) in (self.moments or {}).items():
            if not (math.isfinite(mean) and 0 < std < math.inf):
                raise InputError(f"scorer {name} has mean {mean} and std {std}; needed: finite numbers, a std above 0")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip={self.clip}; needed: above 0 (5 to 10 is usual), or None for none")

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order, with the raw score of each scorer that did not fail."""
        results = self.scores(samples)
        return [self._weighted_sum({name: r[i] for name, r in results.items()}) for i in range(len(samples))]

    def scores(self, samples: Sequence[Sample]) -> dict[str, list[RewardResult[float]]]:
        """Raw scores of the samples by scorer. Raises InputError for a prompt that is not a conversation."""
        conversations = [_conversation(sample) for sample in samples]
        replies = [reply_text(sample.request.reply) for sample in samples]
        policy = RetryPolicy(self.timeout, self.retries)
        return {
            name: score_with_retries(scorer, conversations, replies, policy) for name, scorer in self.scorers.items()
        }

    def _weighted_sum(self, results: Mapping[str, RewardResult[float]]) -> SampleReward:
        scores = {name: result.value for name, result in results.items() if result.value is not None}
        error = "; ".join(f"{name}: {result.error}" for name, result in results.items() if result.value is None)
        if any(weight and name not in scores for name, weight in self.weights.items()):
            return SampleReward(None, scores, error)
        reward = sum(weight * self._normalise(name, scores[name]) for name, weight in self.weights.items() if weight)
        return SampleReward(reward, scores, error)

    def _normalise(self, name: str, score: float) -> float:
        mean, std = (0.0, 1.0) if self.moments is None else self.moments[name]
        normalised = (score - mean) / std
        return normalised if self.clip is None else max(-self.clip, min(normalised, self.clip))


def text_counts(reward_function: Any) -> dict[str, TextCounts]:
    """Counts of the texts so far, by scorer that has them."""
    scorers = reward_function.scorers if isinstance(reward_function, ScorerReward) else {}
    return {name: replace(scorer.counts) for name, scorer in scorers.items() if isinstance(scorer, HFScorer)}


def score_with_retries(
    scorer: Scorer, conversations: Sequence[Conversation], replies: Sequence[str], policy: RetryPolicy
) -> list[RewardResult[float]]:
    """Raw scores of the replies; an error instead of each score that failed."""

    def call(indices: Sequence[int]) -> Any:
        return scorer.score([conversations[i] for i in indices], [replies[i] for i in indices])

    return call_with_retries(call, len(replies), lambda answer, _: read_number(answer), policy)


def reference_moments(reward_function: ScorerReward, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """float64 [3] by scorer: sum, sum of squares and count of its scores of reference replies, to add over ranks.

    Failed scores are left out. `to_moments` turns the sums into the `moments` of a `ScorerReward`.
    """
    sums = {}
    for name, results in reward_function.scores(samples).items():
        values = [result.value for result in results if result.value is not None]
        sums[name] = sums_of(torch.tensor(values, dtype=torch.float64))
    return sums


def to_moments(sums: Mapping[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Mean and std by scorer. Raises InputError for a scorer without scores, or with equal scores for all replies."""
    moments = {}
    for name, scorer_sums in sums.items():
        count = int(scorer_sums[2])
        mean, variance = moments_of(scorer_sums) if count else (0.0, 0.0)
        std = math.sqrt(variance)
        if std <= 1e-6 * max(abs(mean), 1e-6):  # equal but for rounding
            raise InputError(
                f"scorer {name} gave {count} reference replies scores of mean {mean:.6g} and std {std:.3g}, which do "
                "not differ; needed: two replies or more with different scores"
            )
        moments[name] = mean, std
    return moments


def _conversation(sample: Sample) -> Conversation:
    prompt = sample.request.prompt
    if isinstance(prompt, Conversation):
        return prompt
    raise InputError(
        f"a scorer cannot score a reply to the text {prompt!r:.60}; needed: a conversation in the score request (from "
        "rows with messages, or by lmgym.messages.from_transcript), or a Python function as reward"
    )


class RecordingScorer:
    """A reward function that keeps the samples and gives each 0."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """Record the samples."""
        self.samples += samples
        return [SampleReward(0.0) for _ in samples]
