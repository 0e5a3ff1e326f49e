"""Limits of the requests to a server: how many at a time, the waits that it asks for, a cost that is not exceeded.

Design decisions:
- A server that says "too many requests" is asked less: the requests at a time halve, once for all that were under way,
  and grow by one for each round of answers. Its wait holds for all requests, not for the refused one alone.
- There is one limit of time for all of this, `patience`: seconds since the server's last answer.
- The cost is reserved before a request is sent, at the most that it can be, so that requests under way cannot exceed it
  together. A request that may have been answered unseen (a timeout) counts as its most.
- An error ends all requests, but not those under way: their answers, which may be paid for, are handed on first.
"""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from lmgym.errors import ServerError

PATIENCE = 900.0  # seconds
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds, where the server names none: doubled at each refusal in a row
STEPS = 20  # of the event loop, from an answer to its caller
BYTES = 64  # of a request that no message shows: roles and the template's marks
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# in the words of OpenAI ("try again in 1.2s") and of Google ("retryDelay": "20s")
WAITS = re.compile(
    r"(?:(?:try again|retry) in |retryDelay\W+)(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)(ms|s))?", re.IGNORECASE
)
SPENT = re.compile(r"insufficient_quota|billing|credit balance", re.IGNORECASE)


class TooMany(Exception):
    """A server that takes no more requests for now; `wait`: the seconds that it asks for, 0 if it names none."""

    def __init__(self, words: str, wait: float) -> None:
        super().__init__(words)
        self.wait = wait


class CostReached(ServerError):
    """A request that may cost more than is left."""


@dataclass
class Spending:
    """The cost of requests, in the currency of the prices."""

    prices: tuple[float, float]
    """of a million tokens read, and of a million written"""
    most: float = float("inf")
    spent: float = 0.0
    reserved: float = 0.0
    """by requests under way, at the most that they may cost"""

    def cost(self, read: float, written: float) -> float:
        """Of so many tokens."""
        return (read * self.prices[0] + written * self.prices[1]) / 1e6

    def lose(self, most_cost: float) -> None:
        """Counts a try whose answer did not come. Raises CostReached if another one cannot be paid."""
        self.spent += most_cost
        if self.spent + self.reserved > self.most:
            raise self.reached(most_cost)

    def reached(self, most_cost: float) -> CostReached:
        """The error of a request that may cost more than is left."""
        return CostReached(
            f"the next request may cost {most_cost:,.4g}, and {self.spent:,.4g} of --max_cost {self.most:,.4g} are "
            "spent; needed: a larger --max_cost, or fewer or shorter rows"
        )


@dataclass
class RequestLimits:
    """The limits of a generator's requests, over all of its servers and calls; threads share them."""

    most: int
    """requests at a time"""
    patience: float = PATIENCE
    spending: Spending | None = None
    allowed: float = field(init=False)
    """requests at a time, as the server takes them now"""
    refusals: int = 0
    """in a row"""
    silent_since: float | None = None
    """when the first refusal since the last answer came"""
    slowed: float = 0.0
    """when `allowed` fell last"""
    open_at: float = 0.0
    """before, no request is sent"""
    lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.allowed = float(self.most)

    def answered(self) -> None:
        """A request was answered: one more a round is sent."""
        with self.lock:
            self.refusals, self.silent_since = 0, None
            self.allowed = min(float(self.most), self.allowed + 1 / self.allowed)

    def refused(self, sent: float, refusal: TooMany, server: str) -> None:
        """A request that was sent at a time was too many. Raises ServerError if that lasts longer than `patience`."""
        with self.lock:
            now = time.monotonic()
            if sent > self.slowed:  # those that were under way with it tell nothing new
                self.allowed, self.slowed = max(1.0, self.allowed / 2), now
                self.refusals += 1
            since = self.silent_since = now if self.silent_since is None else self.silent_since
            wait = refusal.wait or min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (self.refusals - 1))
            self.open_at = max(self.open_at, now + wait)
            if self.open_at - since > self.patience:
                raise ServerError(
                    f"{server} takes no more requests ({refusal}): it has answered none for {now - since:,.0f} s, and "
                    f"{wait:,.0f} s more exceed a patience of {self.patience:,.0f} s; needed: the same command later, "
                    "or a longer --patience"
                )


class Slots:
    """The requests of one event loop that run under limits."""

    def __init__(self, limits: RequestLimits) -> None:
        self.limits, self.running, self.changed = limits, 0, asyncio.Condition()
        self.ended = False
        """True after an error that ends all: no other request is sent"""

    async def take(self, most_cost: float) -> float:
        """Waits until a request that may cost so much can be sent, for ever once all has ended; the time of sending.

        Raises CostReached if it cannot be paid when no other request runs.
        """
        spending = self.limits.spending
        async with self.changed:
            while True:
                payable = spending is None or spending.spent + spending.reserved + most_cost <= spending.most
                if not self.ended and payable and self.running < int(self.limits.allowed):
                    break
                if not self.ended and spending and not payable and not self.running:
                    raise spending.reached(most_cost)
                await self.changed.wait()
            self.running += 1
            if spending:
                spending.reserved += most_cost
        while not self.ended and (left := self.limits.open_at - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left), self.changed:
                    await self.changed.wait()
        if self.ended:
            await self.give(most_cost, 0.0)
            return await self.take(most_cost)
        return time.monotonic()

    async def give(self, most_cost: float, cost: float) -> None:
        """A request that `take` let through has ended, at a cost."""
        async with self.changed:
            self.running -= 1
            if spending := self.limits.spending:
                spending.reserved -= most_cost
                spending.spent += cost
            self.changed.notify_all()

    async def end(self) -> None:
        """Lets no other request begin, and returns when the answers of those under way have been handed on."""
        self.ended = True
        async with self.changed:
            self.changed.notify_all()
            await self.changed.wait_for(lambda: not self.running)
        for _ in range(STEPS):
            await asyncio.sleep(0)


def too_many(status: int, headers: Mapping[str, str], text: str, words: str) -> TooMany | None:
    """The refusal of one request among too many; None for another one, as for a quota that is spent."""
    wait = parse_retry_after(headers.get("Retry-After", "")) or _wait_in_words(text)
    if status != 429 and not (status >= 500 and wait):
        return None
    return None if SPENT.search(text) and not wait else TooMany(words, wait)


def spent_quota(status: int, text: str) -> bool:
    """True of a refusal that no waiting helps: the account has nothing left."""
    return status in (402, 429) and bool(SPENT.search(text))


def parse_retry_after(header: str) -> float:
    """Seconds from now that a Retry-After header asks for; 0 if it cannot be read."""
    try:
        wait = float(header)
    except ValueError:
        try:
            wait = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, OverflowError):
            return 0.0
    return max(wait, 0.0) if wait < float("inf") else 0.0


def _wait_in_words(text: str) -> float:
    if not (found := WAITS.search(text)):
        return 0.0
    hours, minutes, number, unit = found.groups()
    try:
        seconds = float(number or 0) * UNITS[(unit or "s").lower()]
    except ValueError:
        return 0.0
    return int(hours or 0) * 3600.0 + int(minutes or 0) * 60.0 + seconds


def most_tokens_of(content: Mapping[str, Any]) -> int:
    """The most tokens that a request's messages can have: a token has at least one byte."""
    rows = content.get("messages") or [{"content": content.get("prompt", "")}]
    return sum(BYTES + len(str(row["content"]).encode(errors="replace")) for row in [*rows, {"content": ""}])
