"""The scorers behind the routes: choosing them by name, scoring within the time limit, loading them again.

A request waits for the scorers that it asks for; those that only watch its run answer later.
"""

import asyncio
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.apps.serve.batcher import Batcher, Busy, Job, Scored, Unscored, Verdict
from lmgym.apps.serve.bodies import Read, Template
from lmgym.apps.serve.groups import GroupRoom
from lmgym.apps.serve.guard import Refusal, answered
from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.runs import Asking, Runs
from lmgym.apps.serve.served_scorers import Sample, ServedScorer
from lmgym.console import say
from lmgym.errors import InputError, did_you_mean, listed, one_line, shown
from lmgym.scoring.named_scorers import Precision

SILENCE = 600.0
"""seconds after a client's last request in which only a reload that is forced takes place"""


@dataclass(frozen=True)
class Limits:
    """Bounds on the work that a server takes on."""

    timeout: float = 60.0
    """seconds until a request that is not yet scored is refused"""
    queue: int = 4096
    """replies that may wait"""
    max_body_mb: float = 16.0
    template: Template = "reparse"
    """of rendered texts, unless a request says"""
    stop_on_alarm: bool = False
    """refuse a run that exploits its reward"""


class Service:
    """Named scorers, each with its queue and thread."""

    def __init__(self, paths: Mapping[str, str], limits: Limits, precision: Precision = "auto") -> None:
        self.paths, self.limits, self.precision = dict(paths), limits, precision
        self.metrics, self.runs = Metrics(), Runs(limits.stop_on_alarm)
        self.batchers = {name: Batcher(one, self.metrics, limits.queue) for name, one in self._load().items()}
        self.rooms = {n: GroupRoom(one.submit) for n, one in self.batchers.items() if one.scorer.compares_replies}
        self._reloading = threading.Lock()
        self._heard = -math.inf
        self._notes: set[asyncio.Task] = set()
        """of requests that were answered before their monitors had scored; asyncio alone would forget them"""

    @property
    def scorers(self) -> dict[str, ServedScorer]:
        """Those in use now; the first answers where a request names none."""
        return {name: batcher.scorer for name, batcher in self.batchers.items()}

    @property
    def waiting(self) -> int:
        """Replies in the longest queue."""
        return max(batcher.waiting for batcher in self.batchers.values())

    @property
    def ended(self) -> list[str]:
        """Scorers whose thread has ended."""
        return [name for name, batcher in self.batchers.items() if not batcher.is_alive]

    def stop(self) -> None:
        """Scores what waits, and ends the threads."""
        for batcher in self.batchers.values():
            batcher.stop()

    @property
    def info(self) -> dict[str, Any]:
        """The identity of each scorer's weights."""
        return {name: scorer.info for name, scorer in self.scorers.items()}

    def find(self, name: str | None) -> str:
        """The scorer of a request's model; see `find_served`."""
        return find_served(name, self.paths, "scorer")

    def template(self, *asked: Template | None) -> Template:
        """The reading of rendered texts: that of the first who asks."""
        return next((one for one in asked if one is not None), self.limits.template)

    async def judge(self, request: Any, read: Read, scorers: Sequence[str], group_size: int | None = None) -> Verdict:
        """Opinions of the scorers, the first of which is the reward; a run that the request names is watched with all.

        A judge that compares waits for `group_size` replies to each prompt; without it only others give opinions.
        Raises Refusal for what cannot be scored, or not in time.
        """
        samples, self._heard = read.samples, time.monotonic()
        if not samples:
            raise Refusal(400, "the request holds no reply to score; needed: one or more")
        if len(samples) > self.limits.queue:
            most = f"at most {self.limits.queue:,}, in several requests, or a larger --queue"
            raise Refusal(400, f"{len(samples):,} replies in one request; needed: {most}")
        asking: Asking | None = request.state.asking
        if asking:
            self.runs.check(asking, scorers[0])
        names = self._able(list(dict.fromkeys(scorers)), group_size)
        run = asking.run if asking else ""
        jobs = self._submit(samples, names, run, group_size)
        watching = self._watch(samples, jobs) if asking else {}
        try:
            scored = await self._wait(request, jobs)
        except BaseException:
            for job in [*jobs.values(), *watching.values()]:
                job.answer.cancel()  # a job that waits is not scored then
            raise
        if asking is None:
            return Verdict(scored)
        note = asyncio.create_task(self._note(asking, scorers[0], samples, scored, watching))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)
        await asyncio.sleep(0)  # a run without monitors to wait for is noted now
        return Verdict(scored, self.runs.warnings(asking, scorers[0]))

    def _able(self, names: Sequence[str], group_size: int | None) -> list[str]:
        """The scorers that can score a request. Raises Refusal if the first cannot."""
        able = [name for name in names if group_size or name not in self.rooms]
        if names[0] not in able:
            raise Refusal(
                400,
                f"{names[0]} compares the replies to a prompt; needed: group_size in POST /v1/score, as trl_reward and "
                "verl_reward of lmgym_client.py send with num_generations, or a judge that grades",
            )
        return able

    def _submit(
        self, samples: Sequence[Sample], names: Sequence[str], run: str = "", group_size: int | None = None
    ) -> dict[str, Job]:
        """A job for each scorer. Raises Refusal if one has no room, or its thread has ended."""
        jobs: dict[str, Job] = {}
        try:
            for name in names:
                if not self.batchers[name].is_alive:
                    raise Refusal(503, f"the thread of the scorer {name} has ended; start the server again", 10)
                if name in self.rooms:
                    jobs[name] = self.rooms[name].enter(run, samples, group_size or len(samples))
                    continue
                job = Job(samples)
                self.batchers[name].submit(job)
                jobs[name] = job
        except (Busy, Refusal) as error:
            for job in jobs.values():
                job.answer.cancel()
            raise Refusal(503, str(error), error.seconds) if isinstance(error, Busy) else error from None
        return jobs

    def _watch(self, samples: Sequence[Sample], jobs: Mapping[str, Job]) -> dict[str, Job]:
        """Jobs for the scorers that were not asked; none if one of them has no room."""
        try:
            return self._submit(samples, [n for n in self.paths if n not in jobs and n not in self.rooms])
        except Refusal:
            self.metrics.add("lmgym_unwatched_total")
            return {}

    async def _note(
        self,
        asking: Asking,
        reward: str,
        samples: Sequence[Sample],
        scored: Mapping[str, Scored],
        watching: Mapping[str, Job],
    ) -> None:
        """Adds a request to its run, once the monitors have scored it."""
        unheard = self.paths.keys() - scored.keys() - watching.keys()
        if unheard - self.rooms.keys():  # a judge that compares watches no request that does not ask it
            return
        try:
            found = {name: await asyncio.wrap_future(job.answer) for name, job in watching.items()}
        except Exception as error:
            self.metrics.add("lmgym_unwatched_total")
            say(f"run {shown(asking.run)}: a monitor failed on a request: {one_line(str(error))}", error=True)
            return
        self.runs.note(asking, reward, samples, {**scored, **found})

    async def _wait(self, request: Any, jobs: Mapping[str, Job]) -> dict[str, Scored]:
        """The jobs' answers, while their client waits and the time lasts."""
        answers = asyncio.gather(*(asyncio.wrap_future(job.answer) for job in jobs.values()), return_exceptions=True)
        try:
            in_time = await answered(answers, request, self.limits.timeout)
        finally:
            if not answers.done():
                answers.cancel()
                self.metrics.add("lmgym_abandoned_total")
        if in_time:
            found = dict(zip(jobs, answers.result(), strict=True))
            scored = {name: one for name, one in found.items() if isinstance(one, Scored)}
            if len(scored) < len(found):
                raise _refusal(found)
            return scored
        for name in jobs.keys() & self.rooms.keys():
            if missing := self.rooms[name].missing(jobs[name].samples):
                raise Refusal(422, f"{missing} within {self.limits.timeout:g} s (--timeout); needed: all of a group")
        wait = max(self.batchers[name].seconds_left() for name in jobs)
        raise Refusal(503, f"not scored within {self.limits.timeout:g} s (--timeout); try again", wait)

    def check_silent(self) -> None:
        """Raises Refusal if a client asked for a score of late: other weights would change its reward in mid-run."""
        seconds = time.monotonic() - self._heard
        if seconds < SILENCE:
            needed = f"{SILENCE / 60:.0f} minutes without requests, or /reload?force=true"
            raise Refusal(409, f"a client asked for scores {seconds:.0f} s ago, and would get others; needed: {needed}")

    def reload(self) -> str | None:
        """Loads all scorers again and then exchanges them; the former answer until then, and stay if one does not load.

        Returns what went wrong, or None. Takes the memory of both meanwhile.
        """
        if not self._reloading.acquire(blocking=False):
            return "a reload is under way; try again when it has ended"
        try:
            for name, scorer in self._load().items():
                self.batchers[name].scorer = scorer
            fault = None
        except Exception as error:
            fault = f"{one_line(str(error))}; the former scorers stay in use"
        finally:
            self._reloading.release()
        self.metrics.add("lmgym_reloads_total", outcome="failed" if fault else "done")
        say(f"reload: {fault}" if fault else f"reloaded: {listed(self.paths)}", error=True)
        return fault

    def _load(self) -> dict[str, ServedScorer]:
        return {name: ServedScorer.load(name, path, self.precision) for name, path in self.paths.items()}


def _refusal(found: Mapping[str, Any]) -> Refusal:
    """400 for what cannot be read, 422 for replies that a scorer fails on each time, with all other scores; or 503."""
    errors = [one for one in found.values() if isinstance(one, BaseException)]
    if wrong := [error for error in errors if isinstance(error, InputError)]:
        return Refusal(400, str(wrong[0]))
    if others := [error for error in errors if not isinstance(error, Unscored)]:  # no memory, a server that is away
        say(f"a request failed: {one_line(repr(others[0]))}", error=True)
        return Refusal(503, f"a scorer failed: {one_line(str(others[0]) or type(others[0]).__name__)}", 5)
    refusal = Refusal(422, one_line(str(errors[0]), 1000))
    failed = [
        {"scorer": name, "row": row, "message": one_line(str(error))}
        for name, one in found.items()
        if isinstance(one, Unscored)
        for row, error in one.errors.items()
    ]
    scores = {name: [one and one.score for one in found_by.opinions] for name, found_by in found.items()}
    refusal.more = {"failed": failed, "scores": scores}
    return refusal


def find_served(name: str | None, paths: Mapping[str, str], kind: str) -> str:
    """The name of a request's model: a name, or a path as the server was given it; the first for None.

    Raises Refusal for any other.
    """
    if name is None:
        return next(iter(paths))
    if name in paths:
        return name
    if found := [one for one, path in paths.items() if path == name]:
        return found[0]
    near = did_you_mean(name, paths)
    raise Refusal(404, f"no {kind} {shown(name)} is served; {near}needed: one of {listed(paths)}")
