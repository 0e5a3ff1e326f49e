"""Rewards by scorers: the weighted sum of their normalised scores.

A failed reward is None, never 0 (lmgym/scoring/retries.py).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lmgym.environments.protocol import Sample, SampleReward
from lmgym.errors import InputError
from lmgym.scoring.moments import moments_of, sums_of
from lmgym.scoring.retries import RetryPolicy, RewardResult, ask, read_number
from lmgym.scoring.scorers import HFScorer, Scorer, TextCounts
from lmgym.text import Conversation, reply_text


@dataclass(frozen=True)
class ScorerReward:
    """The weighted sum of scorers' opinions on replies, each first brought to mean 0 and std 1, then clipped.

    A scorer of weight 0 only has an opinion, for the log. Raises
    InputError for names that differ and numbers that cannot be.
    """

    scorers: Mapping[str, Scorer]
    weights: Mapping[str, float]
    moments: Mapping[str, tuple[float, float]] | None = None
    """mean and std of each scorer over reference replies (`reference_moments`); None: scores as they are"""
    clip: float | None = 10.0
    """a normalised opinion is at most so far from 0; None: however far"""
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
        """One reward a sample, in their order, with the raw opinion of each scorer that has one."""
        found = self.opinions(samples)
        return [self._weighted_sum({name: one[i] for name, one in found.items()}) for i in range(len(samples))]

    def opinions(self, samples: Sequence[Sample]) -> dict[str, list[RewardResult[float]]]:
        """What each scorer says of each reply, as it is. Raises InputError for a prompt that is no conversation."""
        conversations = [_conversation(sample) for sample in samples]
        replies = [reply_text(sample.request.reply) for sample in samples]
        patience = RetryPolicy(self.timeout, self.retries)

        return {name: ask_scorer(scorer, conversations, replies, patience) for name, scorer in self.scorers.items()}

    def _weighted_sum(self, found: Mapping[str, RewardResult[float]]) -> SampleReward:
        scores = {name: one.value for name, one in found.items() if one.value is not None}
        error = "; ".join(f"{name}: {one.error}" for name, one in found.items() if one.value is None)
        if any(weight and name not in scores for name, weight in self.weights.items()):
            return SampleReward(None, scores, error)
        reward = sum(weight * self._normal(name, scores[name]) for name, weight in self.weights.items() if weight)
        return SampleReward(reward, scores, error)

    def _normal(self, name: str, score: float) -> float:
        mean, std = (0.0, 1.0) if self.moments is None else self.moments[name]
        normal = (score - mean) / std
        return normal if self.clip is None else max(-self.clip, min(normal, self.clip))


def text_counts(reward_function: Any) -> dict[str, TextCounts]:
    """Texts seen so far by each scorer that counts them."""
    scorers = reward_function.scorers if isinstance(reward_function, ScorerReward) else {}
    return {name: replace(one.counts) for name, one in scorers.items() if isinstance(one, HFScorer)}


def ask_scorer(
    scorer: Scorer, conversations: Sequence[Conversation], replies: Sequence[str], patience: RetryPolicy
) -> list[RewardResult[float]]:
    """What it says of each reply, as it is, or why that could not be had."""

    def call(places: Sequence[int]) -> Any:
        return scorer.score([conversations[i] for i in places], [replies[i] for i in places])

    return ask(call, len(replies), lambda answer, _: read_number(answer), patience)


def reference_moments(reward_function: ScorerReward, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """float64 [3] a scorer: sum, sum of squares and count of its opinions on reference replies; ranks add theirs up.

    What could not be scored is left out. `to_moments` makes of the sums what `ScorerReward` takes.
    """
    sums = {}
    for name, found in reward_function.opinions(samples).items():
        values = torch.tensor([one.value for one in found if one.value is not None], dtype=torch.float64)
        sums[name] = sums_of(values)
    return sums


def to_moments(sums: Mapping[str, torch.Tensor]) -> dict[str, tuple[float, float]]:
    """Mean and std of each scorer. Raises InputError for one that scored nothing, or all reference replies alike."""
    found = {}
    for name, of_scorer in sums.items():
        count = int(of_scorer[2])
        mean, variance = moments_of(of_scorer) if count else (0.0, 0.0)
        std = math.sqrt(variance)
        if std <= 1e-6 * max(abs(mean), 1e-6):  # what rounding leaves
            raise InputError(
                f"scorer {name} gave {count} reference replies scores of mean {mean:.6g} and std {std:.3g}, so that "
                "there is nothing to tell them apart by; needed: two replies or more, scored differently"
            )
        found[name] = mean, std
    return found


def _conversation(sample: Sample) -> Conversation:
    prompt = sample.request.prompt
    if isinstance(prompt, Conversation):
        return prompt
    raise InputError(
        f"a scorer was asked about a reply to the text {prompt!r:.60}; needed: a conversation. Let the environment ask "
        "with one (rows with messages, or lmgym.text.from_transcript), or reward texts by a Python function"
    )
