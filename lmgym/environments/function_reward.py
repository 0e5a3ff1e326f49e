"""Rewards by a Python function of any form of lmgym/scoring/function_forms.py. A failed reward is None, never 0.

Design decisions:
- A function that rewards tokens knows the text of a reply, and has tokens of its own: `tokenizer(output)`, as in trlx's
  programs. Each of these rewards goes to the sampled id that holds the last character of its token.
"""

import inspect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from lmgym.environments.episodes import Step
from lmgym.environments.protocol import Sample, SampleReward
from lmgym.generation.protocol import Completion
from lmgym.runs.process_state import process_state_kept
from lmgym.scoring.function_forms import Given, RewardCall, RewardInput
from lmgym.scoring.retries import RETRIES, RetryPolicy, Reward, RewardResult, call_with_retries, read_number

ARGUMENTS = ("samples", "prompts", "outputs", "tokenizer")
OUTPUT_IDS = "output_ids"  # passed only to functions with a parameter of this name
WINDOW = 8  # ids before one that it is decoded with
ABSTAINS = math.nan
"""in place of the reward of a reply that a function does not apply to"""
NO_REWARD = "no function rewards this reply: each gave None"


@dataclass(frozen=True)
class FunctionReward:
    """A reward function in Python, called by name in its form, with the columns of the tasks, a list each, which have
    None for a task that lacks one.

    It returns a number a reply, or a list with a number for each of its sampled ids, including an eos if one was
    sampled, or for each token of `tokenizer(output)`, with or without special tokens. In TRL's form it may return None
    for a reply that it does not apply to. Raises InputError for a function that fits no form.
    """

    function: Callable[..., Any]
    tokenizer: Any
    timeout: float | None = 60.0
    """seconds a call may take; None: no limit, and no thread"""
    retries: int = RETRIES
    name: str = "the reward function"

    def __post_init__(self) -> None:
        RetryPolicy(self.timeout, self.retries)
        self.call  # noqa: B018 - refuses what fits no form

    @cached_property
    def call(self) -> RewardCall:
        """The function, called by name."""
        return RewardCall(self.name, self.function)

    def check(self, columns: Iterable[str]) -> None:
        """Raises InputError if the function requires what there is not in rows of these columns."""
        self.call.check(Given(frozenset(columns), of_policy=True))

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order."""
        return [
            SampleReward(None, error=NO_REWARD) if abstains(result) else SampleReward(result.value, error=result.error)
            for result in self.results(samples)
        ]

    def results(self, samples: Sequence[Sample]) -> list[RewardResult[Reward]]:
        """The function's result for each sample, in order: a reward, ABSTAINS, or an error."""
        names = list(dict.fromkeys(name for sample in samples for name in sample.request.columns))

        def call(indices: Sequence[int]) -> Any:
            return self.call([_input(samples[i], names) for i in indices], self.tokenizer)

        def parse(answer: Any, index: int) -> Reward:
            if answer is None and self.call.form.may_abstain:
                return ABSTAINS
            return _read_reward(answer, samples[index].completion, self.tokenizer)

        with process_state_kept():
            return call_with_retries(call, len(samples), parse, RetryPolicy(self.timeout, self.retries))


def abstains(result: RewardResult[Any]) -> bool:
    """True for a reply that a function does not apply to."""
    return isinstance(result.value, float) and math.isnan(result.value)


def _input(sample: Sample, names: Sequence[str]) -> RewardInput:
    request = sample.request
    columns = {name: request.columns.get(name) for name in names}
    return RewardInput(request.prompt, request.reply, sample.prompt_text, sample.completion.ids, columns)


def call_function(
    function: Callable[..., Any], replies: Sequence[Step], tokenizer: Any, columns: Mapping[str, list]
) -> Any:
    """The answer of trlx's `metric_fn` for these replies; `columns` have a value for each."""
    ids = {OUTPUT_IDS: [list(reply.completion.ids) for reply in replies]} if _takes_ids(function) else {}
    return function(
        samples=[reply.prompt_text + reply.completion.text for reply in replies],
        prompts=[reply.prompt_text for reply in replies],
        outputs=[reply.completion.text for reply in replies],
        tokenizer=tokenizer,
        **ids,
        **columns,
    )


def _takes_ids(function: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(function).parameters.get(OUTPUT_IDS)
    except (TypeError, ValueError):
        return False  # a builtin without a signature
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


def _read_reward(answer: Any, reply: Completion, tokenizer: Any) -> Reward:
    """A number, or one for each sampled id. Raises ValueError for lists of other lengths."""
    answer = answer.tolist() if hasattr(answer, "tolist") else answer
    if not isinstance(answer, list | tuple):
        return read_number(answer)
    ids, own = reply.ids, list[int]()
    if answer and len(answer) == len(ids):
        return tuple(map(read_number, answer))
    for special in (False, True) if callable(tokenizer) and ids else ():
        places = _last_characters(tokenizer, reply.text, special)
        if len(places) == len(answer):
            return _on_sampled(tokenizer, list(map(read_number, answer)), places, ids)
        own.append(len(places))
    counts = f", or {' or '.join(map(str, dict.fromkeys(own)))} as in tokenizer(output)" if own else ""
    raise ValueError(
        f"{len(answer)} numbers for {len(ids)} sampled tokens; needed: one a sample, or one a token: {len(ids)}, for a "
        f"parameter {OUTPUT_IDS} of the function is given the sampled ids of each reply{counts}"
    )


def _last_characters(tokenizer: Any, text: str, special: bool) -> list[int]:
    """The place in the text of the last character of each of its tokens; special ones are at its ends."""
    if not tokenizer.is_fast:
        ids = tokenizer(text, add_special_tokens=special, verbose=False).input_ids
        return [end - 1 for end in _ends(tokenizer, ids)]
    asked = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "verbose": False}
    found = tokenizer(text, add_special_tokens=special, **asked)
    begun = list(accumulate((not mark for mark in found.special_tokens_mask), max))
    marks = zip(found.offset_mapping, found.special_tokens_mask, begun, strict=True)
    return [(len(text) if after else 0) if mark else max(end - 1, begin) for (begin, end), mark, after in marks]


def _on_sampled(tokenizer: Any, rewards: Sequence[float], places: Sequence[int], ids: Sequence[int]) -> Reward:
    """Each reward on the sampled id that completes the character at its place; what is behind all, on the last id."""
    ends, found = _ends(tokenizer, ids), [0.0] * len(ids)
    for reward, place in zip(rewards, places, strict=True):
        found[min(bisect_right(ends, place), len(ids) - 1)] += reward
    return tuple(found)


def _ends(tokenizer: Any, ids: Sequence[int]) -> list[int]:
    """Characters of the text up to each id and with it, without those of which bytes are still missing."""
    ends, length = list[int](), 0
    for place in range(len(ids)):
        first = max(0, place - WINDOW)
        before = _decode(tokenizer, ids[first:place])
        text = _decode(tokenizer, ids[first : place + 1])
        length += len(text) - len(before)
        ends.append(length - (len(text) - len(text.rstrip("\ufffd"))))
    return list(accumulate(ends, max))


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
