"""Judges: a Python function with trlx's signature, or scorers with weights; and when too many rewards fail.

A reward that cannot be had is None, never 0 (`attempts.py`). A judge waits for no other rank: the loop adds up
what failed over ranks and asks `stop_if_too_many_failed`, so that all ranks stop together or none does.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from lmgym.environments.protocol import Judgement, Sample
from lmgym.errors import REWARDS_FAILED, InputError, RunStopped
from lmgym.generation.protocol import Completion
from lmgym.scoring.retries import RetryPolicy, Reward, RewardResult, ask, read_number
from lmgym.scoring.scorers import HFScorer, Scorer, TextCounts
from lmgym.text import Conversation, reply_text
from ppo.advantages import masked_sums, moments_of

GIVEN = ("samples", "prompts", "outputs", "tokenizer")
OUTPUT_IDS = "output_ids"  # given too, to functions with a parameter of this name: columns of others keep theirs


@dataclass(frozen=True)
class FunctionReward:
    """trlx's `reward_fn(samples, prompts, outputs, tokenizer, **columns)`, all by keyword, as a judge.

    `samples` are prompts with outputs; columns are the tasks', a list each, None where a task has none of that name.
    A function with a parameter `output_ids` is given the sampled ids too, a list a sample, an eos included where it was
    sampled. It gives a number a sample, or a list with a number for each of these ids. Raises InputError for a function
    that cannot be called so.
    """

    function: Callable[..., Any]
    tokenizer: Any
    timeout: float | None = 60.0
    """seconds a call may take; None: no limit, and no thread"""
    retries: int = 2

    def __post_init__(self) -> None:
        RetryPolicy(self.timeout, self.retries)
        self._bind((), whole=False)

    def check(self, columns: Iterable[str]) -> None:
        """Raises InputError where the function cannot be given columns of these names, or asks for others."""
        self._bind(columns, whole=True)

    def _bind(self, columns: Iterable[str], whole: bool) -> None:
        if not callable(self.function) or inspect.iscoroutinefunction(self.function):
            raise InputError(f"the reward is {self.function!r}; needed: a plain function, {_SIGNATURE}")
        given = (*GIVEN, OUTPUT_IDS) if _asks_for_ids(self.function) else GIVEN
        names = [*given, *columns]
        if taken := sorted(set(given) & set(names[len(given) :])):
            raise InputError(
                f"the data has columns named {taken}, which a reward function is given anyway; rename them"
            )
        try:
            signature = inspect.signature(self.function)
            (signature.bind if whole else signature.bind_partial)(**dict.fromkeys(names))
        except TypeError as error:
            raise InputError(
                f"the reward function cannot be called with {names}: {error}; needed: {_SIGNATURE}"
            ) from error
        except ValueError:
            return  # a builtin that does not tell its parameters

    def judge(self, samples: Sequence[Sample]) -> list[Judgement]:
        """One judgement a sample, in their order."""
        names = list(dict.fromkeys(name for sample in samples for name in sample.request.columns))

        def call(places: Sequence[int]) -> Any:
            chosen = [samples[place] for place in places]
            columns = {name: [one.request.columns.get(name) for one in chosen] for name in names}
            return call_function(self.function, chosen, self.tokenizer, columns)

        def read(answer: Any, place: int) -> Reward:
            return _read_reward(answer, len(samples[place].completion.ids))

        found = ask(call, len(samples), read, RetryPolicy(self.timeout, self.retries))
        return [Judgement(one.value, error=one.error) for one in found]


class Replied(Protocol):
    """A reply and what it is one to: a sample, or an episode's step."""

    @property
    def prompt_text(self) -> str: ...

    @property
    def completion(self) -> Completion: ...


def call_function(
    function: Callable[..., Any], replies: Sequence[Replied], tokenizer: Any, columns: Mapping[str, list]
) -> Any:
    """What trlx's `reward_fn` or `metric_fn` says of these replies; `columns` have a value for each."""
    ids = {OUTPUT_IDS: [list(one.completion.ids) for one in replies]} if _asks_for_ids(function) else {}
    return function(
        samples=[one.prompt_text + one.completion.text for one in replies],
        prompts=[one.prompt_text for one in replies],
        outputs=[one.completion.text for one in replies],
        tokenizer=tokenizer,
        **ids,
        **columns,
    )


def _asks_for_ids(function: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get(OUTPUT_IDS)
    except (TypeError, ValueError):
        return False  # it does not tell its parameters
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


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

    def judge(self, samples: Sequence[Sample]) -> list[Judgement]:
        """One judgement a sample, in their order, with the raw opinion of each scorer that has one."""
        found = self.opinions(samples)
        return [self._judgement({name: one[i] for name, one in found.items()}) for i in range(len(samples))]

    def opinions(self, samples: Sequence[Sample]) -> dict[str, list[RewardResult[float]]]:
        """What each scorer says of each reply, as it is. Raises InputError for a prompt that is no conversation."""
        conversations = [_conversation(sample) for sample in samples]
        replies = [reply_text(sample.request.reply) for sample in samples]
        patience = RetryPolicy(self.timeout, self.retries)

        return {name: ask_scorer(scorer, conversations, replies, patience) for name, scorer in self.scorers.items()}

    def _judgement(self, found: Mapping[str, RewardResult[float]]) -> Judgement:
        scores = {name: one.value for name, one in found.items() if one.value is not None}
        error = "; ".join(f"{name}: {one.error}" for name, one in found.items() if one.value is None)
        if any(weight and name not in scores for name, weight in self.weights.items()):
            return Judgement(None, scores, error)
        reward = sum(weight * self._normal(name, scores[name]) for name, weight in self.weights.items() if weight)
        return Judgement(reward, scores, error)

    def _normal(self, name: str, score: float) -> float:
        mean, std = (0.0, 1.0) if self.moments is None else self.moments[name]
        normal = (score - mean) / std
        return normal if self.clip is None else max(-self.clip, min(normal, self.clip))


def text_counts(judge: Any) -> dict[str, TextCounts]:
    """Texts that each scorer of a judge was shown so far, of those that count them."""
    scorers = judge.scorers if isinstance(judge, ScorerReward) else {}
    return {name: replace(one.counts) for name, one in scorers.items() if isinstance(one, HFScorer)}


def ask_scorer(
    scorer: Scorer, conversations: Sequence[Conversation], replies: Sequence[str], patience: RetryPolicy
) -> list[RewardResult[float]]:
    """What it says of each reply, as it is, or why that could not be had."""

    def call(places: Sequence[int]) -> Any:
        return scorer.score([conversations[i] for i in places], [replies[i] for i in places])

    return ask(call, len(replies), lambda answer, _: read_number(answer), patience)


def reference_moments(judge: ScorerReward, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """float64 [3] a scorer: sum, sum of squares and count of its opinions on reference replies; ranks add theirs up.

    What could not be scored is left out. `to_moments` makes of the sums what `ScorerReward` takes.
    """
    sums = {}
    for name, found in judge.opinions(samples).items():
        values = torch.tensor([one.value for one in found if one.value is not None], dtype=torch.float64)
        sums[name] = masked_sums(values, torch.ones_like(values))
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


def stop_if_too_many_failed(failed: int, asked: int, most: float, error: str) -> None:
    """Raises RunStopped where more than the share `most` of rewards failed. Counts are of all ranks: all agree."""
    if failed > most * asked:
        why = f"{failed} of {asked} rewards could not be had, more than max_failed_rewards={most:g} allows"
        raise RunStopped(f"{why}; one of them: {error}", "rewards_failed", REWARDS_FAILED)


_SIGNATURE = "reward_fn(samples, prompts, outputs, tokenizer, **columns)"


def _read_reward(answer: Any, tokens: int) -> Reward:
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(answer, list | tuple):
        return read_number(answer)
    if not answer or len(answer) != tokens:
        raise ValueError(
            f"{len(answer)} numbers for {tokens} sampled tokens; needed: one a sample, or one a token: a parameter "
            f"{OUTPUT_IDS} of the function is given the sampled ids of each reply"
        )
    return tuple(map(read_number, answer))


def _conversation(sample: Sample) -> Conversation:
    prompt = sample.request.prompt
    if isinstance(prompt, Conversation):
        return prompt
    raise InputError(
        f"a scorer was asked about a reply to the text {prompt!r:.60}; needed: a conversation. Let the environment ask "
        "with one (rows with messages, or lmgym.text.from_transcript), or reward texts by a Python function"
    )
