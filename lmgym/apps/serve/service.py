"""The scorers behind the routes: choosing them by name, scoring within the time limit, loading them again."""

import asyncio
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmgym.apps.serve.batcher import Batcher, Busy, Job, Verdict
from lmgym.apps.serve.bodies import Read, Template
from lmgym.apps.serve.guard import Refusal, until_gone
from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.runs import Asking, Runs
from lmgym.apps.serve.served_scorers import ServedScorer
from lmgym.console import say
from lmgym.errors import InputError, did_you_mean, listed, one_line, shown
from lmgym.scoring.named_scorers import Precision


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
    """Named scorers, and the thread that they run in."""

    def __init__(self, paths: Mapping[str, str], limits: Limits, precision: Precision = "auto") -> None:
        self.paths, self.limits, self.precision = dict(paths), limits, precision
        self.metrics, self.runs = Metrics(), Runs(limits.stop_on_alarm)
        self.batcher = Batcher(self._load(), self.metrics, limits.queue)
        self._reloading = threading.Lock()

    @property
    def scorers(self) -> dict[str, ServedScorer]:
        """Those in use now; the first answers where a request names none."""
        return self.batcher.scorers

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

    async def judge(self, request: Any, read: Read, scorers: Sequence[str]) -> Verdict:
        """Opinions of the scorers, the first of which is the reward; a run that the request names is watched with all.

        Raises Refusal for what cannot be scored, or not in time.
        """
        samples = read.samples
        if not samples:
            raise Refusal(400, "the request holds no reply to score; needed: one or more")
        if len(samples) > self.limits.queue:
            most = f"at most {self.limits.queue:,}, in several requests, or a larger --queue"
            raise Refusal(400, f"{len(samples):,} replies in one request; needed: {most}")
        if not self.batcher.is_alive:
            raise Refusal(503, "the thread that scores has ended; start the server again", 10)
        asking: Asking | None = request.state.asking
        if asking:
            self.runs.check(asking, scorers[0])
        asked = list(dict.fromkeys(scorers))
        job = Job(samples, list(dict.fromkeys([*asked, *self.paths])) if asking else asked)
        try:
            self.batcher.submit(job)
        except Busy as busy:
            raise Refusal(503, str(busy), busy.seconds) from None
        try:
            verdict = await self._wait(request, job)
        except InputError as error:
            raise Refusal(400, str(error)) from error
        except Refusal:
            raise
        except Exception as error:  # of a scorer: NaN, no memory
            say(f"a request of {len(samples):,} replies failed: {one_line(repr(error))}", error=True)
            raise Refusal(503, f"a scorer failed: {one_line(str(error) or type(error).__name__)}", 5) from error
        return verdict.of(asked, self.runs.note(asking, asked[0], samples, verdict)) if asking else verdict

    async def _wait(self, request: Any, job: Job) -> Verdict:
        """The job's answer, while its client waits and the time lasts."""
        answer = asyncio.wrap_future(job.answer)
        gone = asyncio.create_task(until_gone(request))
        waited: set[asyncio.Future] = {answer, gone}
        try:
            done, _ = await asyncio.wait(waited, timeout=self.limits.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if answer in done:
            return answer.result()
        answer.cancel()  # a job that waits is not scored then
        self.metrics.add("lmgym_abandoned_total")
        if gone in done:
            raise Refusal(503, "the client left", 1)
        wait = self.batcher.seconds_left()
        raise Refusal(503, f"not scored within {self.limits.timeout:g} s (--timeout); try again", wait)

    def reload(self) -> str | None:
        """Loads all scorers again and then exchanges them; the former answer until then, and stay if one does not load.

        Returns what went wrong, or None. Takes the memory of both meanwhile.
        """
        if not self._reloading.acquire(blocking=False):
            return "a reload is under way; try again when it has ended"
        try:
            self.batcher.scorers = self._load()
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
