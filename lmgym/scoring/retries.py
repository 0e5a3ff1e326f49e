"""Asking for rewards what may raise, stall, or answer with something that is no reward.

Design decisions:
- A failure is never a number: a `RewardResult` has a value, or says what went wrong.
- A whole batch is asked for again a bounded number of times; what was good in one attempt stays. Where no answer came
  that could be told apart by samples, each is asked for alone once, so that one that breaks does not lose the others.
- A call with a limit of time runs in a thread. A thread cannot be killed: one that stalls is left behind, as a daemon
  that does not keep the run from ending. A batch that stalled `WHOLE_STALLS` times is not asked for again; its samples
  have 1 / LONE_STALLS of the timeout each, and after `LONE_STALLS` that stall alone the rest is given up. A call that
  always stalls costs (WHOLE_STALLS + 1) * timeout seconds at most, however many retries.
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

import torch

from lmgym.errors import MOST_SCORE, MOST_SECONDS, InputError, RunStopped, shown

WHOLE_STALLS, LONE_STALLS = 2, 2
LETTERS = 300  # of a message that is kept

T = TypeVar("T")
Reward = float | tuple[float, ...]
Call = Callable[[Sequence[int]], Any]
"""asks for the rewards of the samples at these places of the batch"""
Read = Callable[[Any, int], T]
"""one reward, or what else is asked for, out of what a call gave, for the sample at a place; raises where it is none"""

_End = Literal["answered", "broke", "stalled"]


@dataclass(frozen=True)
class RewardResult(Generic[T]):
    """A reward, or what else was asked for, or why there is none."""

    value: T | None
    error: str = ""


@dataclass(frozen=True)
class RetryPolicy:
    """How long and how often to ask."""

    timeout: float | None
    """seconds that a call may take; None: as long as it likes, in the caller's own thread"""
    retries: int
    """of a batch, after its first attempt; fewer where it stalls"""

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout <= MOST_SECONDS:
            raise InputError(
                f"reward timeout={self.timeout}; needed: seconds above 0, at most {MOST_SECONDS:,}, or None"
            )
        if self.retries < 0:
            raise InputError(f"reward retries={self.retries}; needed: 0 or more")


class Stalled(Exception):
    """No answer in time."""


def ask(call: Call, count: int, read: Read[T], patience: RetryPolicy) -> list[RewardResult[T]]:
    """What came of asking for `count` rewards, in their order. Raises only RunStopped, where the call does."""
    found: list[RewardResult[T]] = [RewardResult(None, "was not asked for")] * count
    end: _End = "answered"
    stalls = 0
    for _ in range(1 + patience.retries):
        if all(one.value is not None for one in found):
            return found
        fresh, end = _attempt(call, range(count), read, patience.timeout)
        found = [old if old.value is not None else new for old, new in zip(found, fresh, strict=True)]
        stalls += end == "stalled"
        if stalls == WHOLE_STALLS:
            break
    if end == "answered" or count == 1:
        return found
    limit = patience.timeout
    if limit is not None and end == "stalled":
        limit /= LONE_STALLS  # one timeout for all that stall alone: most likely whatever is asked stalls
    return _ask_alone(call, found, read, limit)


def read_number(value: Any) -> float:
    """A reward as float. Raises TypeError for what is no number, ValueError for NaN, infinity and beyond MOST_SCORE."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{shown(value)} is {type(value).__name__}; needed: a number")
    number = float(value)
    if not abs(number) <= MOST_SCORE:
        raise ValueError(f"{number} is no reward; needed: a finite number, at most {MOST_SCORE:,.0f} in size")
    return number


def _ask_alone(call: Call, found: list[RewardResult[T]], read: Read[T], timeout: float | None) -> list[RewardResult[T]]:
    found, stalls = list(found), 0
    for place, one in enumerate(found):
        if one.value is None and stalls < LONE_STALLS:
            [alone], end = _attempt(call, [place], read, timeout)
            stalls += end == "stalled"
            found[place] = alone if alone.value is not None else RewardResult(None, _both(one.error, alone.error))
    return found


def _both(of_batch: str, of_one: str) -> str:
    """Where a batch breaks, what it gave says what is wrong: one sample alone may break in another way."""
    return of_batch if of_one == of_batch else f"{of_batch}; asked for alone: {of_one}"


def _attempt(
    call: Call, places: Sequence[int], read: Read[T], timeout: float | None
) -> tuple[list[RewardResult[T]], _End]:
    try:
        answers = _within(timeout, lambda: _listed(call(places), len(places)))
    except RunStopped:
        raise
    except Exception as error:
        failed: RewardResult[T] = RewardResult(None, _told(error))
        return [failed] * len(places), "stalled" if isinstance(error, Stalled) else "broke"
    return [_read(read, answer, place) for answer, place in zip(answers, places, strict=True)], "answered"


def _read(read: Read[T], answer: Any, place: int) -> RewardResult[T]:
    try:
        return RewardResult(read(answer, place))
    except Exception as error:
        return RewardResult(None, f"gave what is no reward: {_one_line(str(error))}")


def _listed(found: Any, count: int) -> list[Any]:
    """What a call gave as a list of `count`, read in the thread of the call: a generator may stall or raise too."""
    answers = found.tolist() if hasattr(found, "tolist") else found  # arrays and tensors; a number where it is one
    if isinstance(answers, str | bytes | Mapping | Set) or not isinstance(answers, Iterable):
        raise TypeError(f"gave {type(found).__name__} for {count} samples; needed: a list, one reward a sample")
    listed = list(islice(answers, count + 1))
    if len(listed) != count:
        given = len(answers) if isinstance(answers, Sized) else "more" if len(listed) > count else len(listed)
        raise ValueError(f"gave {given} rewards for {count} samples; needed: one a sample")
    return listed


def _within(seconds: float | None, call: Callable[[], list[Any]]) -> list[Any]:
    """The call's result. Raises what it raises, and Stalled where it takes longer."""
    if seconds is None:
        with torch.no_grad():
            return call()
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()
    # both are a thread's own: a reward model on "cuda" must not land on another rank's device
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def work() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            with torch.no_grad():
                answers.put(call())
        except Exception as error:
            answers.put(error)
        except BaseException as error:  # sys.exit() in a reward function: it has failed, the run goes on
            answers.put(RuntimeError(repr(error)))

    threading.Thread(target=work, daemon=True, name="reward").start()
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        raise Stalled(f"gave no answer within {seconds:g} s (--reward_timeout)") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _told(error: Exception) -> str:
    """What went wrong on one line, and where in the caller's code."""
    if isinstance(error, Stalled):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or frames[-1].filename == __file__:
        return _one_line(str(error))
    return _one_line(f"raised {type(error).__name__}: {error} ({Path(frames[-1].filename).name}:{frames[-1].lineno})")


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
