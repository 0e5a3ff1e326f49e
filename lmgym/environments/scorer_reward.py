"""Rewards by scorers and functions: the weighted sum of what they give. A failed reward is None, never 0."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lmgym.environments.function_reward import NO_REWARD, FunctionReward, abstains
from lmgym.environments.protocol import Sample, SampleReward
from lmgym.errors import InputError
from lmgym.scoring.comparing_judge import ComparingJudge
from lmgym.scoring.moments import moments_of, sums_of
from lmgym.scoring.protocol import Scorer, text_for
from lmgym.scoring.retries import RETRIES, RetryPolicy, Reward, RewardResult, call_with_retries, read_number
from lmgym.scoring.scorers import HFScorer, TextCounts
from lmgym.text import Conversation

Source = Scorer | FunctionReward
NO_VERDICT = "the judge gave no verdict on its comparisons"
ALONE = "a judge that compares had one reply to its prompt; needed: several, which see the same conversation"


@dataclass(frozen=True)
class ScorerReward:
    """The weighted sum of scores and of functions' rewards, as they are, or normalised to mean 0 and std 1 and clipped.

    Those of weight 0 are only logged. A function may abstain (TRL's None): the sum is of the others. Raises InputError
    for names that differ and for numbers out of bounds.
    """

    scorers: Mapping[str, Source]
    weights: Mapping[str, float]
    moments: Mapping[str, tuple[float, float]] | None = None
    """mean and std over reference replies (`reference_moments`) of those that are normalised; None: all as they are"""
    clip: float | None = 10.0
    """largest absolute value of a normalised score; None: no limit"""
    timeout: float | None = None
    """seconds a scorer may take for a batch; None: no limit, and no thread"""
    retries: int = RETRIES
    first_weights: Mapping[str, float] = field(default_factory=dict)
    """of those that change: the weight at the beginning of a run, from which it goes evenly to that in `weights`"""

    def __post_init__(self) -> None:
        RetryPolicy(self.timeout, self.retries)
        if set(self.weights) != set(self.scorers) or not self.weights:
            raise InputError(
                f"weights for {sorted(self.weights)}; needed: for each of the scorers, {sorted(self.scorers)}"
            )
        numbers = [*self.weights.values(), *self.first_weights.values()]
        if not (any(numbers) or self.first_weights) or not all(map(math.isfinite, numbers)):
            raise InputError(f"weights {dict(self.weights)}; needed: finite numbers, not all 0")
        if others := sorted((self.moments or {}).keys() - self.scorers.keys()):
            raise InputError(f"moments for {others}; needed: for some of the scorers, {sorted(self.scorers)}")
        for name, (mean, std) in (self.moments or {}).items():
            if not (math.isfinite(mean) and 0 < std < math.inf):
                raise InputError(f"scorer {name} has mean {mean} and std {std}; needed: finite numbers, a std above 0")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"clip={self.clip}; needed: above 0 (5 to 10 is usual), or None for none")

    def at(self, share: float) -> "ScorerReward":
        """The reward when this share of a run is over, 0 to 1."""
        last = self.weights
        now = {name: (1 - share) * first + share * last[name] for name, first in self.first_weights.items()}
        return replace(self, weights=dict(last) | now)

    def check(self, columns: Collection[str]) -> None:
        """Raises InputError if a function requires what there is not in rows of these columns."""
        for source in self.scorers.values():
            if isinstance(source, FunctionReward):
                source.check(columns)

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order, with the raw score of each scorer that did not fail."""
        results = self.scores(samples)
        return [self._weighted_sum({name: r[i] for name, r in results.items()}) for i in range(len(samples))]

    def scores(self, samples: Sequence[Sample]) -> dict[str, list[RewardResult[Reward]]]:
        """Raw scores of the samples by scorer. Raises InputError for a prompt that is not a conversation."""
        policy = RetryPolicy(self.timeout, self.retries)
        return {name: scores_of(source, samples, policy) for name, source in self.scorers.items()}

    def _weighted_sum(self, results: Mapping[str, RewardResult[Reward]]) -> SampleReward:
        found = {n: result.value for n, result in results.items() if result.value is not None and not abstains(result)}
        scores = {name: sum(value) if isinstance(value, tuple) else value for name, value in found.items()}
        errors = {name: result.error for name, result in results.items() if result.value is None}
        used = [name for name, weight in self.weights.items() if weight or name in self.first_weights]
        dense = [name for name in used if isinstance(found.get(name), tuple)]
        if dense and len(used) > 1:
            errors |= dict.fromkeys(dense, "gave a list for a sample; needed: a number, of one of several functions")
        error = "; ".join(f"{name}: {why}" for name, why in errors.items())
        if any(name in errors for name in used) or not any(name in found for name in used):
            return SampleReward(None, scores, error or NO_REWARD)
        alone = found[used[0]] if dense else 0.0
        if isinstance(alone, tuple):
            return SampleReward(tuple(self.weights[used[0]] * value for value in alone), scores, error)
        reward = sum(self.weights[name] * self._normalise(name, scores[name]) for name in used if name in found)
        return SampleReward(reward, scores, error)

    def _normalise(self, name: str, score: float) -> float:
        if self.moments is None or name not in self.moments:
            return score
        mean, std = self.moments[name]
        normalised = (score - mean) / std
        return normalised if self.clip is None else max(-self.clip, min(normalised, self.clip))


def scores_of(source: Source, samples: Sequence[Sample], policy: RetryPolicy) -> list[RewardResult[Reward]]:
    """The raw scores of a scorer, by this policy, or of a function, by its own."""
    if isinstance(source, FunctionReward):
        return source.results(samples)
    conversations = [_conversation(sample) for sample in samples]
    if isinstance(source, ComparingJudge):
        return _compared(source, conversations, samples, policy)
    replies = [text_for(source, sample.request.reply) for sample in samples]
    found: list[Any] = score_with_retries(source, conversations, replies, policy)
    return found


def _compared(
    judge: ComparingJudge, conversations: Sequence[Conversation], samples: Sequence[Sample], policy: RetryPolicy
) -> list[RewardResult[Reward]]:
    """Strengths within the groups of samples, which have one prompt each; of samples without a group the share won
    against the starting policy's reply.
    """
    groups: dict[Any, list[int]] = {}
    for place, (conversation, sample) in enumerate(zip(conversations, samples, strict=True)):
        alone = sample.group is None
        groups.setdefault(place if alone else (sample.group, conversation), []).append(place)
    parts = list(groups.values())
    replies = [sample.request.reply for sample in samples]

    def call(numbers: Sequence[int]) -> list[Any]:
        found: dict[int, list[float]] = {n: [math.nan] for n in numbers}
        single = [n for n in numbers if samples[parts[n][0]].group is None]
        places = [parts[n][0] for n in single]
        shares = judge.shares_won([conversations[i] for i in places], [replies[i] for i in places])
        found |= {n: [share] for n, share in zip(single, shares, strict=True)}
        several = [n for n in numbers if len(parts[n]) > 1]
        strengths = judge.score_groups(
            [conversations[parts[n][0]] for n in several], [[replies[i] for i in parts[n]] for n in several]
        )
        found |= dict(zip(several, strengths, strict=True))
        return [found[n] for n in numbers]

    results: list[RewardResult[Reward]] = [RewardResult(None)] * len(samples)
    for part, one in zip(parts, call_with_retries(call, len(parts), lambda answer, _: answer, policy), strict=True):
        for place, value in zip(part, one.value or [math.nan] * len(part), strict=True):
            why = one.error or (NO_VERDICT if len(part) > 1 or samples[place].group is None else ALONE)
            results[place] = RewardResult(None, why) if math.isnan(value) else RewardResult(value)
    return results


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


def reference_moments(
    reward_function: ScorerReward, samples: Sequence[Sample], names: Collection[str] | None = None
) -> dict[str, torch.Tensor]:
    """float64 [3] by scorer: sum, sum of squares and count of its scores of reference replies, to add over ranks.

    Of the scorers `names`, or all. Failed scores are left out, and so are those of tokens. `to_moments` turns the sums
    into the `moments` of a `ScorerReward`.
    """
    policy = RetryPolicy(reward_function.timeout, reward_function.retries)
    sums = {}
    for name in reward_function.scorers if names is None else names:
        results = scores_of(reward_function.scorers[name], samples, policy)
        values = [result.value for result in results if isinstance(result.value, float) and not abstains(result)]
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
                "not differ; needed: two replies or more with different scores, or --normalize none"
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
