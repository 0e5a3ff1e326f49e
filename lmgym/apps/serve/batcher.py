"""One thread that owns the scorers: what waits while it scores becomes its next call, whichever clients sent it."""

import queue
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.served_scorers import Opinion, Sample, ServedScorer
from lmgym.text import words_of

MOST_REPLIES, MOST_CHARACTERS = 1024, 131_072
"""of the jobs that are scored together, unless the first alone has more"""
LONGEST_WAIT = 30


class Busy(Exception):
    """The queue is full; `seconds` until there should be room."""

    def __init__(self, waiting: int, seconds: int) -> None:
        super().__init__(f"{waiting:,} replies wait to be scored, and the queue holds no more; try again")
        self.seconds = seconds


@dataclass(frozen=True)
class Verdict:
    """The opinions of a request's scorers, and which weights gave them."""

    opinions: dict[str, list[Opinion]]
    scorers: dict[str, ServedScorer]
    warnings: Sequence[str] = ()
    """of the run that the request belongs to"""

    def of(self, names: Collection[str], warnings: Sequence[str]) -> "Verdict":
        """The part of some scorers."""
        opinions = {name: self.opinions[name] for name in names}
        return Verdict(opinions, {name: self.scorers[name] for name in names}, warnings)


@dataclass
class Job:
    """The replies of a request."""

    samples: Sequence[Sample]
    scorers: Sequence[str]
    answer: "Future[Verdict]" = field(default_factory=Future)

    @property
    def characters(self) -> int:
        """Of all texts."""
        return sum(
            len(s.text or "") + len(words_of(s.reply)) + sum(len(turn.text) for turn in s.conversation.turns)
            for s in self.samples
        )


class Batcher:
    """Scores jobs in the order in which they come, several in one call. `scorers` may be exchanged at any time."""

    def __init__(self, scorers: Mapping[str, ServedScorer], metrics: Metrics, capacity: int) -> None:
        self.scorers, self.metrics, self.capacity = dict(scorers), metrics, capacity
        self.waiting = 0
        """replies of jobs that wait or are being scored"""
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._speed = 0.0
        """replies a second of the last call"""
        self._thread = threading.Thread(target=self._work, name="scorers", daemon=True)
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
        self._jobs.put(job)

    def seconds_left(self) -> int:
        """Estimate of the time that the waiting replies take, 1 to LONGEST_WAIT."""
        return max(1, min(LONGEST_WAIT, round(self.waiting / self._speed))) if self._speed else 1

    def stop(self) -> None:
        """Scores what waits, and ends the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while job := self._jobs.get():
            jobs, stopped = self._with_others(job)
            began = time.monotonic()
            wanted = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
            verdicts = self.verdicts(wanted)
            replies = sum(len(job.samples) for job in jobs)
            with self._lock:
                self.waiting -= replies
                self._speed = replies / max(time.monotonic() - began, 1e-6)
            for job, verdict in zip(wanted, verdicts, strict=True):
                if isinstance(verdict, Exception):
                    job.answer.set_exception(verdict)
                else:
                    job.answer.set_result(verdict)
            if stopped:
                return

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
            jobs.append(job)
            replies, characters = replies + len(job.samples), characters + job.characters
        return jobs, False

    def verdicts(self, jobs: Sequence[Job]) -> list[Verdict | Exception]:
        """For each job its verdict, or the error of the first scorer that failed on it; in as few calls as possible."""
        scorers = self.scorers  # the same for a whole call: a reload exchanges them
        opinions: list[dict[str, list[Opinion]]] = [{} for _ in jobs]
        errors: dict[int, Exception] = {}
        for name in dict.fromkeys(name for job in jobs for name in job.scorers):
            places = [i for i, job in enumerate(jobs) if name in job.scorers and i not in errors]
            for place, found in zip(places, self._judge(scorers[name], [jobs[i] for i in places]), strict=True):
                if isinstance(found, Exception):
                    errors[place] = found
                else:
                    opinions[place][name] = found
                    self.metrics.add("lmgym_replies_total", len(found), scorer=name)
                    self.metrics.add("lmgym_truncated_total", sum(one.is_truncated for one in found), scorer=name)
        return [
            errors.get(place) or Verdict(opinions[place], {name: scorers[name] for name in job.scorers})
            for place, job in enumerate(jobs)
        ]

    def _judge(self, scorer: ServedScorer, jobs: Sequence[Job]) -> list[list[Opinion] | Exception]:
        """Opinions a job, or its error: a call that fails is made again in halves, so that one cannot fail others."""
        if not jobs:
            return []
        try:
            whole = iter(self._call(scorer, [sample for job in jobs for sample in job.samples]))
        except Exception as error:
            half = len(jobs) // 2
            return self._judge(scorer, jobs[:half]) + self._judge(scorer, jobs[half:]) if half else [error]
        found: list[list[Opinion] | Exception] = [[next(whole) for _ in job.samples] for job in jobs]
        # replies to one conversation are truncated together: those of other clients must not count
        asked = Counter(conversation for job in jobs for conversation in {s.conversation for s in job.samples})
        for place, job in enumerate(jobs):
            opinions = found[place]
            assert isinstance(opinions, list)
            pairs = zip(job.samples, opinions, strict=True)
            if any(one.is_truncated and s.text is None and asked[s.conversation] > 1 for s, one in pairs):
                [found[place]] = self._judge(scorer, [job])
        return found

    def _call(self, scorer: ServedScorer, samples: Sequence[Sample]) -> list[Opinion]:
        began = time.monotonic()
        try:
            return scorer.judge(samples)
        finally:
            self.metrics.add("lmgym_batches_total", scorer=scorer.name)
            self.metrics.add("lmgym_scorer_seconds_total", time.monotonic() - began, scorer=scorer.name)
