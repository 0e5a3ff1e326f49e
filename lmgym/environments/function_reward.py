"""Rewards by a Python function with trlx's signature.

A failed reward is None, never 0 (lmgym/scoring/retries.py).
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lmgym.environments.protocol import Sample, SampleReward
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.scoring.retries import RetryPolicy, Reward, ask, read_number

GIVEN = ("samples", "prompts", "outputs", "tokenizer")
OUTPUT_IDS = "output_ids"  # passed only to functions with a parameter of this name
_SIGNATURE = "reward_fn(samples, prompts, outputs, tokenizer, **columns)"


@dataclass(frozen=True)
class FunctionReward:
    """trlx's `reward_fn(samples, prompts, outputs, tokenizer, **columns)`, all by keyword, as a reward_function.

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

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in their order."""
        names = list(dict.fromkeys(name for sample in samples for name in sample.request.columns))

        def call(places: Sequence[int]) -> Any:
            chosen = [samples[place] for place in places]
            columns = {name: [one.request.columns.get(name) for one in chosen] for name in names}
            return call_function(self.function, chosen, self.tokenizer, columns)

        def read(answer: Any, place: int) -> Reward:
            return _read_reward(answer, len(samples[place].completion.ids))

        found = ask(call, len(samples), read, RetryPolicy(self.timeout, self.retries))
        return [SampleReward(one.value, error=one.error) for one in found]


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
