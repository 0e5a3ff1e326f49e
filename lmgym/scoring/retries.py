"""Calls of reward functions and scorers, which may raise, stall, or return something that is not a reward.

Design decisions:
- A failure is never a number: a `RewardResult` has a value or an error.
- A failed batch is repeated a bounded number of times, and rewards that were valid in one attempt are kept. If the
  last attempt gave no list of rewards at all, each sample is tried alone once, so that one bad sample does not lose
  the others.
- A call with a timeout runs in a thread. Python cannot kill a thread: one that stalls is left behind, as a daemon that
  does not keep the run from ending. A batch that stalled `WHOLE_STALLS` times is not repeated; its samples then have
  1 / LONE_STALLS of the timeout each, and after `LONE_STALLS` more stalls the rest fail. So a function that always
  stalls costs at most (WHOLE_STALLS + 1) * timeout seconds, whatever the number of retries.
"""

import numbers
import queue
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from lmgym.errors import MOST_SCORE, MOST_SECONDS, InputError, RunStopped, shown

WHOLE_STALLS, LONE_STALLS = 2, 2
RETRIES = 2
MAX_MESSAGE = 300  # characters

T = TypeVar("T")
Reward = float | tuple[float, ...]
Call = Callable[[Sequence[int]], Any]
"""computes the rewards of the samples with these indices"""
Parse = Callable[[Any, int], T]
"""reads one reward from what a call returned for the sample of an index; raises if it is not valid"""

_End = Literal["answered", "raised", "stalled"]


@dataclass(frozen=True)
class RewardResult(Generic[T]):
    """A reward (or another value that was called for), or the error that left none."""

    value: T | None
    error: str = ""


@dataclass(frozen=True)
class RetryPolicy:
    """The time limit and the number of repetitions of a call."""

    timeout: float | None
    """seconds a call may take; None: no limit, and no thread"""
    retries: int = RETRIES
    """of a batch, after its first attempt; fewer if it stalls"""

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout <= MOST_SECONDS:
            raise InputError(
                f"reward timeout={self.timeout}; needed: seconds above 0, at most {MOST_SECONDS:,}, or None"
            )
        if self.retries < 0:
            raise InputError(f"reward retries={self.retries}; needed: 0 or more")


class Stalled(Exception):
    """A call did not return in time."""


def call_with_retries(call: Call, count: int, parse: Parse[T], policy: RetryPolicy) -> list[RewardResult[T]]:
    """Results of `count` samples, in order. Raises only RunStopped, if the call does."""
    results: list[RewardResult[T]] = [RewardResult(None, "was not asked for")] * count
    end: _End = "answered"
    stalls = 0
    for _ in range(1 + policy.retries):
        if all(result.value is not None for result in results):
            return results
        new, end = _attempt(call, range(count), parse, policy.timeout)
        results = [old if old.value is not None else fresh for old, fresh in zip(results, new, strict=True)]
        stalls += end == "stalled"
        if stalls == WHOLE_STALLS:
            break
    if end == "answered" or count == 1:
        return results
    timeout = policy.timeout
    if timeout is not None and end == "stalled":
        timeout /= LONE_STALLS  # one timeout for all lone stalls: most likely every call stalls
    return _call_one_by_one(call, results, parse, timeout)


def read_number(value: Any) -> float:
    """A reward as float. Raises TypeError for other types, ValueError for NaN, infinity and beyond MOST_SCORE."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{shown(value)} is {type(value).__name__}; needed: a number")
    number = float(value)
    if not abs(number) <= MOST_SCORE:
        raise ValueError(f"{number} is no reward; needed: a finite number, at most {MOST_SCORE:,.0f} in size")
    return number


def _call_one_by_one(
    call: Call, results: list[RewardResult[T]], parse: Parse[T], timeout: float | None
) -> list[RewardResult[T]]:
    """The results, with each sample that has none tried alone."""
    results, stalls = list(results), 0
    for index, result in enumerate(results):
        if result.value is None and stalls < LONE_STALLS:
            [alone], end = _attempt(call, [index], parse, timeout)
            stalls += end == "stalled"
            if alone.value is None and alone.error != result.error:
                # the error of the batch is the cause: one sample alone may fail in another way
                alone = RewardResult(None, f"{result.error}; asked for alone: {alone.error}")
            results[index] = alone
    return results


def _attempt(
    call: Call, indices: Sequence[int], parse: Parse[T], timeout: float | None
) -> tuple[list[RewardResult[T]], _End]:
    try:
        answers = _call_within(timeout, lambda: _as_list(call(indices), len(indices)))
    except RunStopped:
        raise
    except Exception as error:
        failed: RewardResult[T] = RewardResult(None, _describe(error))
        return [failed] * len(indices), "stalled" if isinstance(error, Stalled) else "raised"
    return [_parse(parse, answer, index) for answer, index in zip(answers, indices, strict=True)], "answered"


def _parse(parse: Parse[T], answer: Any, index: int) -> RewardResult[T]:
    try:
        return RewardResult(parse(answer, index))
    except Exception as error:
        return RewardResult(None, f"gave what is no reward: {_one_line(str(error))}")


def _as_list(answer: Any, count: int) -> list[Any]:
    """The list of `count` rewards that a call returned, read in the call's thread: a generator may stall or raise."""
    rewards = answer.tolist() if hasattr(answer, "tolist") else answer  # a number for an array without dimensions
    if isinstance(rewards, str | bytes | Mapping | Set) or not isinstance(rewards, Iterable):
        raise TypeError(f"gave {type(answer).__name__} for {count} samples; needed: a list, one reward a sample")
    listed = list(islice(rewards, count + 1))
    if len(listed) != count:
        given = len(rewards) if isinstance(rewards, Sized) else "more" if len(listed) > count else len(listed)
        raise ValueError(f"gave {given} rewards for {count} samples; needed: one a sample")
    return listed


def _call_within(seconds: float | None, call: Callable[[], list[Any]]) -> list[Any]:
    """The call's result. Raises what the call raises, and Stalled if it takes longer than `seconds`."""
    import torch  # here: games between scripts, which have no such rewards, start without it

    if seconds is None:
        try:
            with torch.no_grad():
                return call()
        except SystemExit as error:  # sys.exit() in a reward function is a failure, it does not end the run
            raise RuntimeError(repr(error)) from error
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()
    # device and grad mode are per thread: a reward model on "cuda" must not use another rank's device
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def work() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            with torch.no_grad():
                answers.put(call())
        except Exception as error:
            answers.put(error)
        except BaseException as error:  # as above
            answers.put(RuntimeError(repr(error)))

    threading.Thread(target=work, daemon=True, name="reward").start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise Stalled(f"gave no answer within {seconds:g} s (--reward_timeout)") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _describe(error: Exception) -> str:
    """The error on one line, with its place in the caller's code."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, Stalled) or not frames or frames[-1].filename == __file__:
        return _one_line(str(error))
    return _one_line(f"raised {type(error).__name__}: {error} ({Path(frames[-1].filename).name}:{frames[-1].lineno})")


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
