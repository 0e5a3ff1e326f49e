"""The one thread that owns the models: jobs in order, a bounded queue, time limits, and jobs that nobody waits for."""

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from patience import PATIENCE, wait_until

from lmgym.errors import InputError

pytest.importorskip("fastapi")

from lmgym.apps.serve.chat_models import Abandoned, ChatModels, Defaults
from lmgym.apps.serve.guard import Refusal

LONG = 30.0
"""seconds of a job that is let go"""


@pytest.fixture
def make_models():
    """Models that hold nothing: what they run is the test's own."""
    made: list[ChatModels] = []

    def make(queue: int = 4, timeout: float = PATIENCE) -> ChatModels:
        made.append(ChatModels({}, {}, {}, Defaults(1, 1, {}, {}), queue, timeout))
        return made[-1]

    yield make
    for models in made:
        models.stop()


def together(*jobs: Coroutine[Any, Any, Any]) -> list[Any]:
    """The result of each job, or the error that it raised."""

    async def gather() -> list[Any]:
        return await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(gather())


def test_jobs_run_one_after_the_other_in_one_thread_in_the_order_in_which_they_came(make_models) -> None:
    models, seen = make_models(queue=20), []

    def work(i: int) -> int:
        seen.append((i, "begins", threading.current_thread().name))
        time.sleep(0.002)
        seen.append((i, "ends", threading.current_thread().name))
        return i

    assert together(*(models.run(work, i) for i in range(20))) == list(range(20))
    assert [(i, what) for i, what, _ in seen] == [(i, what) for i in range(20) for what in ("begins", "ends")]
    assert len({name for _, _, name in seen}) == 1
    assert models.waiting == 0


def test_a_full_queue_refuses_for_now_and_has_room_again_later(make_models) -> None:
    models, free = make_models(queue=2), threading.Event()
    jobs = [models.run(free.wait, LONG) for _ in range(4)]

    async def let_go() -> None:
        free.set()

    *answers, _ = together(*jobs, let_go())
    assert answers[:2] == [True, True]
    for refusal in answers[2:]:
        assert isinstance(refusal, Refusal)
        assert (refusal.status, refusal.retry_after) == (503, 1)
        assert str(refusal) == "2 requests wait, and the queue holds no more; try again"
    assert together(models.run(len, "abc")) == [3]


def test_a_job_whose_time_is_up_is_ended_and_the_next_one_runs(make_models) -> None:
    models, ended = make_models(timeout=0.2), []

    def generate() -> None:
        try:
            while True:
                models.progress(1, 2)
                time.sleep(0.01)
        except Abandoned:
            ended.append(True)
            raise

    [refusal] = together(models.run(generate))
    assert (refusal.status, str(refusal)) == (503, "no answer within 0.2 s (--timeout); try again")
    wait_until(lambda: ended == [True])
    assert "\nlmgym_abandoned_total 1\n" in models.metrics.text({})
    wait_until(lambda: models.waiting == 0)
    models.timeout = PATIENCE
    assert together(models.run(lambda: models.progress(1, 2) or "next")) == ["next"]


def test_a_job_that_nobody_waits_for_any_more_never_begins(make_models) -> None:
    models, free, begun = make_models(), threading.Event(), []

    async def leave() -> None:
        first = asyncio.ensure_future(models.run(free.wait, LONG))
        second = asyncio.ensure_future(models.run(begun.append, "second"))
        third = asyncio.ensure_future(models.run(begun.append, "third"))
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.wait({second})
        await asyncio.sleep(0.05)
        assert models.waiting == 2
        free.set()
        await asyncio.gather(first, third)
        with pytest.raises(asyncio.CancelledError):
            await second

    asyncio.run(leave())
    assert begun == ["third"]


def test_a_user_error_is_raised_as_it_is_and_any_other_refuses_for_now(make_models, capsys) -> None:
    models = make_models()

    def fail(error: Exception) -> None:
        raise error

    wrong, refused, broken = together(
        *(models.run(fail, error) for error in (InputError("too long"), Refusal(404, "no"), MemoryError("8 GiB\nx")))
    )
    assert (type(wrong), str(wrong)) == (InputError, "too long")
    assert refused.status == 404
    assert (broken.status, str(broken), broken.retry_after) == (503, "the model failed: 8 GiB x", 5)
    assert "a request failed: MemoryError" in capsys.readouterr().err
    assert together(models.run(len, "abc")) == [3]
