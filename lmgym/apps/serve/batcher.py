"""A thread for each scorer: what waits while it scores becomes its next call, whichever clients sent it."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.served_scorers import Opinion, Sample, ServedScorer
from lmgym.errors import InputError
from lmgym.scoring.protocol import FunctionFailed
from lmgym.text import words_of

MOST_REPLIES, MOST_CHARACTERS = 1024, 131_072
"""of the jobs that are scored together, unless the first alone has more"""
LONGEST_WAIT = 30
MOST_FAILED = 8
"""replies of a job that are found one by one if a scorer fails on them"""


class Busy(Exception):
    """The queue is full; `seconds` until there should be room."""

    def __init__(self, waiting: int, seconds: int) -> None:
        super().__init__(f"{waiting:,} replies wait to be scored, and the queue holds no more; try again")
        self.seconds = seconds


class Unscored(Exception):
    """A scorer failed on some replies each time: its error by place, and the opinions of the others."""

    def __init__(self, name: str, errors: dict[int, Exception], opinions: Sequence[Opinion | None]) -> None:
        row, error = next(iter(errors.items()))
        more = f" (and on {len(errors) - 1:,} more)" if len(errors) > 1 else ""
        super().__init__(f"scorer {name} failed on reply {row}{more} of {len(opinions):,}, each time: {error}")
        self.name, self.errors, self.opinions = name, errors, opinions


@dataclass(frozen=True)
class Scored:
    """The opinions of a job's replies, and the weights that gave them."""

    opinions: list[Opinion]
    scorer: ServedScorer


@dataclass(frozen=True)
class Verdict:
    """The answers of a request's scorers, by their names, and the warnings of the run that it belongs to."""

    scored: Mapping[str, Scored]
    warnings: Sequence[str] = ()


@dataclass
class Job:
    """The replies of a request, for one scorer."""

    samples: Sequence[Sample]
    answer: "Future[Scored]" = field(default_factory=Future)
    """may be cancelled until its call begins"""

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(
            len(s.text or "") + len(words_of(s.reply)) + sum(len(turn.text) for turn in s.conversation.turns)
            for s in self.samples
        )


class Batcher:
    """Scores jobs in the order in which they come, several in one call. `scorer` may be exchanged at any time."""

    def __init__(self, scorer: ServedScorer, metrics: Metrics, capacity: int) -> None:
        self.scorer, self.metrics, self.capacity = scorer, metrics, capacity
        self.waiting = 0
        """replies of jobs that wait or are being scored"""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._speed = 0.0
        """replies a second of the last call"""
        self._thread = threading.Thread(target=self._work, name=f"scorer {scorer.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True while jobs are scored."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Puts a job into the queue. Raises Busy if that is full."""
        with self._lock:
            if self.waiting + len(job.samples) > self.capacity:
                raise Busy(self.waiting, self.seconds_left())
            self.waiting += len(job.samples)
        job.answer.add_done_callback(lambda _: self._leave(len(job.samples)))  # also of one that is cancelled
        self._jobs.put(job)

    def _leave(self, replies: int) -> None:
        with self._lock:
            self.waiting -= replies

    def seconds_left(self) -> int:
        """Estimate of the time that the waiting replies take, 1 to LONGEST_WAIT."""
        return max(1, min(LONGEST_WAIT, round(self.waiting / self._speed))) if self._speed else 1

    def stop(self) -> None:
        """Scores what waits, and ends the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while self._score_next():  # a call of its own, or the texts of the last one would stay in memory
            pass

    def _score_next(self) -> bool:
        """Scores what waits, or the next job that comes; False at the end of the queue."""
        job = self._jobs.get()
        if job is None:
            return False
        jobs, stopped = self._with_others(job)
        wanted = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
        began, scorer = time.monotonic(), self.scorer  # the same for a whole call: a reload exchanges it
        for job, found in zip(wanted, self.judge(scorer, wanted), strict=True):
            if isinstance(found, Exception):
                job.answer.set_exception(found)
            else:
                self._count(found)
                job.answer.set_result(Scored(found, scorer))
        if replies := sum(len(job.samples) for job in wanted):
            self._speed = replies / max(time.monotonic() - began, 1e-6)
        return not stopped

    def _count(self, opinions: Sequence[Opinion]) -> None:
        self.metrics.add("lmgym_replies_total", len(opinions), scorer=self.scorer.name)
        truncated = sum(one.is_truncated for one in opinions)
        self.metrics.add("lmgym_truncated_total", truncated, scorer=self.scorer.name)

    def _with_others(self, first: Job) -> tuple[list[Job], bool]:
        """(the job and those behind it that are scored with it, True if the end of the queue was among them)."""
        jobs, replies, characters = [first], len(first.samples), first.characters
        while replies < MOST_REPLIES and characters < MOST_CHARACTERS:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            if job.answer.cancelled():
                continue
            jobs.append(job)
            replies, characters = replies + len(job.samples), characters + job.characters
        return jobs, False

    def judge(self, scorer: ServedScorer, jobs: Sequence[Job]) -> list[list[Opinion] | Exception]:
        """Opinions a job, or its error: a call that fails is made again in halves, so that one cannot fail others."""
        if not jobs:
            return []
        try:
            whole = iter(self._call(scorer, [sample for job in jobs for sample in job.samples]))
        except Exception as error:
            half = len(jobs) // 2
            if half:
                return self.judge(scorer, jobs[:half]) + self.judge(scorer, jobs[half:])
            return [self._again(scorer, jobs[0].samples, error)]
        found: list[list[Opinion] | Exception] = [[next(whole) for _ in job.samples] for job in jobs]
        # replies to one conversation are truncated together: those of other clients must not count
        asked = Counter(conversation for job in jobs for conversation in {s.conversation for s in job.samples})
        for place, job in enumerate(jobs):
            opinions = found[place]
            assert isinstance(opinions, list)
            pairs = zip(job.samples, opinions, strict=True)
            if any(one.is_truncated and s.text is None and asked[s.conversation] > 1 for s, one in pairs):
                [found[place]] = self.judge(scorer, [job])
        return found

    def _again(self, scorer: ServedScorer, samples: Sequence[Sample], error: Exception) -> list[Opinion] | Exception:
        """Opinions of a job that failed, if another call succeeds; else the error, with the replies that it is of."""
        if not _is_of_reply(error):
            return error
        errors: dict[int, Exception] = {}
        try:
            opinions = self._apart(scorer, samples, 0, errors)
        except Exception as other:
            return other
        return Unscored(scorer.name, errors, opinions) if errors else [one for one in opinions if one is not None]

    def _apart(
        self, scorer: ServedScorer, samples: Sequence[Sample], first: int, errors: dict[int, Exception]
    ) -> list[Opinion | None]:
        """Opinions, None where the scorer fails, in smaller and smaller calls; adds errors by place from `first`."""
        try:
            return [*self._call(scorer, samples)]
        except Exception as error:
            if not _is_of_reply(error):
                raise
            half = len(samples) // 2
            if half and len(errors) < MOST_FAILED:
                found = self._apart(scorer, samples[:half], first, errors)
                return found + self._apart(scorer, samples[half:], first + half, errors)
            errors |= dict.fromkeys(range(first, first + len(samples)), error)
            return [None] * len(samples)

    def _call(self, scorer: ServedScorer, samples: Sequence[Sample]) -> list[Opinion]:
        began = time.monotonic()
        try:
            return scorer.judge(samples)
        finally:
            self.metrics.add("lmgym_batches_total", scorer=scorer.name)
            self.metrics.add("lmgym_scorer_seconds_total", time.monotonic() - began, scorer=scorer.name)


def _is_of_reply(error: Exception) -> bool:
    """True for NaN and for what a user's function raised: no server that is away, no lack of memory, no refusal."""
    return isinstance(error, FunctionFailed) or (isinstance(error, ValueError) and not isinstance(error, InputError))
