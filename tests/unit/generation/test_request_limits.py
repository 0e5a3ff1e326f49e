"""Servers' wishes in headers and words, requests at a time that fall and recover, costs that are not exceeded."""

import asyncio
import contextlib
import time

import pytest

from lmgym.errors import ServerError
from lmgym.generation import request_limits
from lmgym.generation.request_limits import (
    CostReached,
    RequestLimits,
    Slots,
    Spending,
    TooMany,
    most_tokens_of,
    parse_retry_after,
    spent_quota,
    too_many,
)


def test_a_wait_is_read_from_the_header_and_from_the_words_of_two_providers() -> None:
    assert parse_retry_after("7") == 7
    assert parse_retry_after("86400") == 86400
    assert parse_retry_after("Fri, 31 Dec 9999 23:59:59 GMT") > 1e9
    assert [
        parse_retry_after(words) for words in ("", "-3", "soon", "inf", "nan", "Thu, 01 Jan 1970 00:00:00 GMT")
    ] == [0] * 6
    waits = {
        "Rate limit reached. Please try again in 1.2s.": 1.2,
        "Rate limit reached. Please try again in 20ms.": 0.02,
        "Rate limit reached. Please try again in 6m0s.": 360,
        "Rate limit reached. Please try again in 1h2m3s.": 3723,
        '"@type": "RetryInfo", "retryDelay": "20s"': 20,
        "too many": 0,
    }
    for text, wait in waits.items():
        refusal = too_many(429, {}, text, text)
        assert refusal is not None
        assert refusal.wait == pytest.approx(wait)


def test_a_spent_quota_is_told_from_too_many_requests() -> None:
    spent = '{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'
    assert too_many(429, {}, spent, spent) is None
    assert spent_quota(429, spent)
    assert too_many(429, {}, "quota of requests per minute", "") is not None
    assert too_many(500, {}, "broken", "") is None
    assert too_many(503, {"Retry-After": "3"}, "busy", "") is not None


def test_requests_at_a_time_halve_once_for_those_under_way_and_grow_by_one_a_round() -> None:
    limits = RequestLimits(8)
    sent = time.monotonic()
    for _ in range(8):  # all were sent before the first refusal
        limits.refused(sent, TooMany("slow down", 0.01), "server")
    assert limits.allowed == 4
    limits.refused(time.monotonic(), TooMany("slow down", 0.01), "server")
    assert limits.allowed == 2
    limits.answered()
    limits.answered()
    assert 2.8 < limits.allowed < 3
    for _ in range(100):
        limits.answered()
    assert limits.allowed == 8


def test_without_a_wait_of_the_servers_own_the_waits_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_limits, "LONGEST_WAIT", 3.0)
    limits, waits = RequestLimits(8), []
    for _ in range(4):
        limits.refused(time.monotonic(), TooMany("", 0.0), "server")
        waits.append(round(limits.open_at - time.monotonic()))
    assert waits == [1, 2, 3, 3]


def test_patience_counts_from_the_last_answer() -> None:
    limits = RequestLimits(8, patience=60)
    limits.refused(time.monotonic(), TooMany("", 50), "server")
    limits.answered()
    limits.refused(time.monotonic(), TooMany("", 50), "server")
    with pytest.raises(
        ServerError, match=r"server takes no more requests \(per day\).*600 s more exceed a patience of 60"
    ):
        limits.refused(time.monotonic(), TooMany("per day", 600), "server")


def run_requests(limits: RequestLimits, most_cost: float, cost: float, count: int) -> tuple[int, int]:
    """(requests that were sent, most of them at a time) until one cannot be paid."""
    sent = together = most = 0

    async def request(slots: Slots) -> None:
        nonlocal sent, together, most
        await slots.take(most_cost)
        sent, together = sent + 1, together + 1
        most = max(most, together)
        await asyncio.sleep(0.001)
        together -= 1
        await slots.give(most_cost, cost)

    async def all_of_them() -> None:
        slots = Slots(limits)
        await asyncio.gather(*(request(slots) for _ in range(count)))

    with contextlib.suppress(CostReached):
        asyncio.run(all_of_them())
    return sent, most


def test_a_cost_is_reserved_before_a_request_so_that_those_under_way_do_not_exceed_it_together() -> None:
    spending = Spending((1.0, 1.0), most=10.0)
    sent, together = run_requests(RequestLimits(8, spending=spending), most_cost=3.0, cost=1.0, count=100)
    assert (sent, together) == (8, 3), "8 of a cost of 1 leave 2, and the next may cost 3"
    assert spending.spent == 8.0


def test_without_a_limit_of_cost_all_requests_are_sent() -> None:
    assert run_requests(RequestLimits(5), 3.0, 1.0, 40) == (40, 5)


def test_an_end_waits_for_what_is_under_way_and_lets_nothing_begin_that_a_server_put_off() -> None:
    limits, handed_on = RequestLimits(4), []
    begun = 0

    async def request(slots: Slots, number: int) -> None:
        nonlocal begun
        await slots.take(0.0)
        begun += 1
        if number == 0:  # the server asks the next two to wait for an hour
            limits.open_at = time.monotonic() + 3600
        await asyncio.sleep(0.05)
        await slots.give(0.0, 0.0)
        handed_on.append(number)

    async def ended() -> None:
        slots = Slots(limits)
        waiting = [asyncio.create_task(request(slots, number)) for number in range(3)]
        await asyncio.sleep(0.01)
        await slots.end()
        assert (begun, handed_on, slots.running) == (1, [0], 0)
        for one in waiting:
            one.cancel()

    asyncio.run(asyncio.wait_for(ended(), 60))


def test_a_try_whose_answer_did_not_come_counts_as_its_most() -> None:
    spending = Spending((1.0, 1.0), most=5.0)
    spending.lose(3.0)
    with pytest.raises(CostReached, match=r"may cost 3, and 6 of --max_cost 5 are spent"):
        spending.lose(3.0)


def test_no_text_has_more_tokens_than_bytes() -> None:
    assert most_tokens_of({"messages": [{"role": "user", "content": "é" * 10}]}) == 20 + 2 * request_limits.BYTES
    assert most_tokens_of({"prompt": "abc"}) == 3 + 2 * request_limits.BYTES
