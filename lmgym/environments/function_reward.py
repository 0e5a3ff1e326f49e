"""Rewards by a Python function with trlx's signature. A failed reward is None, never 0 (lmgym/scoring/retries.py).

Design decisions:
- A function that rewards tokens knows the text of a reply, and has tokens of its own: `tokenizer(output)`, as in trlx's
  programs. Each of these rewards goes to the sampled id that holds the last character of its token.
"""

import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from lmgym.environments.episodes import Step
from lmgym.environments.protocol import Sample, SampleReward
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.runs.process_state import process_state_kept
from lmgym.scoring.retries import RetryPolicy, Reward, call_with_retries, read_number

ARGUMENTS = ("samples", "prompts", "outputs", "tokenizer")
OUTPUT_IDS = "output_ids"  # passed only to functions with a parameter of this name
WINDOW = 8  # ids before one that it is decoded with
_SIGNATURE = "reward_fn(samples, prompts, outputs, tokenizer, **columns)"


@dataclass(frozen=True)
class FunctionReward:
    """A reward function in Python: trlx's `reward_fn(samples, prompts, outputs, tokenizer, **columns)`.

    All arguments are passed by keyword. `samples` are prompts with outputs; columns are those of the tasks, a list
    each, with None for a task that lacks one. A function with a parameter `output_ids` also gets the sampled ids, a
    list a sample, including an eos if one was sampled. It returns a number a sample, or a list with a number for each
    of these ids, or for each token of `tokenizer(output)`, with or without special tokens. Raises InputError for a
    function that cannot be called so.
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
        """Raises InputError if the function does not accept columns of these names, or requires others."""
        self._bind(columns, whole=True)

    def _bind(self, columns: Iterable[str], whole: bool) -> None:
        """Bind the arguments to the function's parameters, all of which must be given if `whole`."""
        if not callable(self.function) or inspect.iscoroutinefunction(self.function):
            raise InputError(f"the reward is {self.function!r}; needed: a plain function, {_SIGNATURE}")
        arguments = (*ARGUMENTS, OUTPUT_IDS) if _takes_ids(self.function) else ARGUMENTS
        columns = list(columns)
        if taken := sorted(set(arguments) & set(columns)):
            raise InputError(
                f"the data has columns named {taken}, which a reward function is given anyway; rename them"
            )
        names = [*arguments, *columns]
        try:
            signature = inspect.signature(self.function)
            (signature.bind if whole else signature.bind_partial)(**dict.fromkeys(names))
        except TypeError as error:
            raise InputError(
                f"the reward function cannot be called with {names}: {error}; needed: {_SIGNATURE}"
            ) from error
        except ValueError:
            return  # a builtin without a signature

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order."""
        names = list(dict.fromkeys(name for sample in samples for name in sample.request.columns))

        def call(indices: Sequence[int]) -> Any:
            chosen = [samples[i] for i in indices]
            columns = {name: [sample.request.columns.get(name) for sample in chosen] for name in names}
            return call_function(self.function, chosen, self.tokenizer, columns)

        def parse(answer: Any, index: int) -> Reward:
            return _read_reward(answer, samples[index].completion, self.tokenizer)

        with process_state_kept():
            results = call_with_retries(call, len(samples), parse, RetryPolicy(self.timeout, self.retries))
        return [SampleReward(result.value, error=result.error) for result in results]


@dataclass(frozen=True)
class WeightedRewards:
    """The weighted sum of several reward functions, whose own rewards, a number a sample, are logged as scores.

    A function of weight 0 is only logged. Raises InputError for weights of other names, and if all are 0.
    """

    functions: Mapping[str, FunctionReward]
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if set(self.weights) != set(self.functions) or not any(self.weights.values()):
            raise InputError(
                f"weights {dict(self.weights)} for reward functions {sorted(self.functions)}; needed: a number for "
                "each, not all 0"
            )

    def check(self, columns: Iterable[str]) -> None:
        """Raises InputError if a function does not accept columns of these names, or requires others."""
        columns = list(columns)
        for name, function in self.functions.items():
            try:
                function.check(columns)
            except InputError as error:
                raise InputError(f"{name}: {error}") from error

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order, with that of each function that did not fail."""
        found = {name: function.rewards(samples) for name, function in self.functions.items()}
        return [self._weighted_sum({name: rewards[i] for name, rewards in found.items()}) for i in range(len(samples))]

    def _weighted_sum(self, results: Mapping[str, SampleReward]) -> SampleReward:
        scores, errors = {}, {name: result.error for name, result in results.items() if result.error}
        for name, result in results.items():
            if isinstance(result.reward, float):
                scores[name] = result.reward
            elif result.reward is not None:
                errors[name] = "gave a list for a sample; needed: a number, of one of several functions"
        error = "; ".join(f"{name}: {found}" for name, found in errors.items())
        if any(weight and name not in scores for name, weight in self.weights.items()):
            return SampleReward(None, scores, error)
        return SampleReward(sum(self.weights[name] * score for name, score in scores.items()), scores, error)


def call_function(
    function: Callable[..., Any], replies: Sequence[Sample | Step], tokenizer: Any, columns: Mapping[str, list]
) -> Any:
    """The answer of trlx's `reward_fn` or `metric_fn` for these replies; `columns` have a value for each."""
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
