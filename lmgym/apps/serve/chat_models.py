"""The models of the chat server: loaded as `lmgym chat` loads them, and used by one thread, a job at a time."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from lmgym.apps.chat.exchanges import check_count
from lmgym.apps.chat.loading import check_scorer, load_experiment, model_revisions, sampling_of, template_note
from lmgym.apps.chat.startup import BEST_OF
from lmgym.apps.serve.guard import Refusal, answered
from lmgym.apps.serve.metrics import Metrics
from lmgym.apps.serve.service import find_served
from lmgym.console import say
from lmgym.errors import InputError, one_line
from lmgym.generation.protocol import Generator, Sampling
from lmgym.scoring.protocol import Scorer

LONGEST_WAIT = 60


class Abandoned(Exception):
    """Raised inside a job that nobody waits for any more."""

    def __init__(self) -> None:
        super().__init__("the client left, or the time was up")


@dataclass(frozen=True)
class Defaults:
    """The settings of a request, or of a session of the page, that names none."""

    best_of: int
    """replies to generate"""
    max_best_of: int
    """most replies that a request may have generated"""
    sampling: Mapping[str, Sampling]
    """by policy: that of its folder, as in `lmgym chat`"""
    weights: Mapping[str, float]
    """of the scorers that select, as `%select` and `%blend` set them; empty without scorers"""
    persona: str = ""
    first_message: str = ""


class ChatModels:
    """Policies and scorers by name. Only jobs that are given to `run` may generate and score."""

    def __init__(
        self,
        paths: Mapping[str, str],
        policies: Mapping[str, Generator],
        judges: Mapping[str, Scorer],
        defaults: Defaults,
        queue: int = 64,
        timeout: float = 300.0,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        self.paths, self.policies, self.judges, self.defaults = dict(paths), dict(policies), dict(judges), defaults
        self.queue, self.timeout = queue, timeout
        self.info: dict[str, Any] = dict(info or {})
        """{"policies": {name: revision}, "scorers": {name: revision}}; see `model_revisions` of lmgym/apps/chat"""
        self.metrics = Metrics()
        self.waiting = 0
        """jobs that wait or run"""
        self._seconds = 0.0
        """of the last job"""
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="models")
        self._running = threading.Event()  # of the job that runs: set once nobody waits for it

    def find(self, name: str | None) -> str:
        """The policy of a request's model: a name or its path; the first for None. Raises Refusal for any other."""
        return find_served(name, self.paths, "model")

    def revisions(self, policy: str) -> dict[str, Any]:
        """The policy's and the scorers' identity, as a session's file names them."""
        return {"generator": self.info["policies"][policy], **self.info["scorers"]}

    async def run(self, work: Callable[..., Any], *args: Any, request: Any = None) -> Any:
        """The result of `work(*args)` in the thread of the models; an InputError of it is raised here.

        Work of which nobody awaits the result is not begun, or, where it calls `progress`, ended: the time was up, the
        caller was cancelled, or the client of the `request` left. Raises Refusal with 503 for a full queue, a time
        limit, and any other error of the work.
        """
        with self._lock:
            if self.waiting >= self.queue:
                full = f"{self.waiting:,} requests wait, and the queue holds no more; try again"
                raise Refusal(503, full, self._seconds_left())
            self.waiting += 1
        abandoned = threading.Event()
        job = self._pool.submit(self._work, abandoned, work, args)
        job.add_done_callback(self._leave)
        answer: asyncio.Future = asyncio.wrap_future(job)
        try:
            if await answered(answer, request, self.timeout):
                return _result(answer)
            raise Refusal(503, f"no answer within {self.timeout:g} s (--timeout); try again", self._seconds_left())
        finally:
            if not answer.done():
                self.metrics.add("lmgym_abandoned_total")
                abandoned.set()
                answer.cancel()

    def progress(self, done: int, total: int) -> None:
        """For generators, as their `progress`: ends a job that nobody waits for."""
        if self._running.is_set():
            raise Abandoned

    def stop(self) -> None:
        """Ends the job that runs and the thread."""
        self._running.set()
        self._pool.shutdown(cancel_futures=True)

    def _leave(self, _: Any) -> None:
        with self._lock:
            self.waiting -= 1

    def _seconds_left(self) -> int:
        """Estimate of the time that the waiting jobs take, 1 to LONGEST_WAIT."""
        return max(1, min(LONGEST_WAIT, round(self.waiting * self._seconds)))

    def _work(self, abandoned: threading.Event, work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._running, began = abandoned, time.monotonic()
        try:
            return work(*args)
        finally:
            self._seconds = time.monotonic() - began


def _result(answer: asyncio.Future) -> Any:
    try:
        return answer.result()
    except (InputError, Refusal):
        raise
    except Exception as error:  # no memory, a server that died
        say(f"a request failed: {one_line(repr(error))}", error=True)
        raise Refusal(503, f"the model failed: {one_line(str(error) or type(error).__name__)}", 5) from error


@dataclass(frozen=True)
class ChatOptions:
    """The options of `lmgym serve chat`; None is missing."""

    scorers: str = ""
    best_of: int | None = None
    max_best_of: int = 64
    select_model: str | None = None
    max_tokens: int | None = None
    prompt: str = ""
    first_message: str = ""
    queue: int = 64
    timeout: float = 300.0
    concurrency: int = 8


def load_models(paths: Mapping[str, str], options: ChatOptions) -> ChatModels:
    """The policies at the paths by name, and the scorers. Raises InputError, if possible before anything loads."""
    most = check_count(options.max_best_of, "max_best_of")
    if options.best_of is not None and not 1 <= options.best_of <= most:
        raise InputError(f"best_of={options.best_of:,}: needed 1 to {most:,}, or a larger --max_best_of")
    flags = ["--scorers", options.scorers, "--concurrency", str(options.concurrency)]
    loaders = {name: load_experiment("hh", ["--model", path, *flags]) for name, path in paths.items()}
    first = next(iter(loaders.values()))
    judges = first.judges()
    select = check_scorer(options.select_model, judges, "--scorers")
    policies, sampling = {}, {}
    for name, experiment in loaders.items():
        policies[name] = generator = experiment.generator()
        used, note = sampling_of(experiment, generator)
        sampling[name] = used if options.max_tokens is None else replace(used, max_new_tokens=options.max_tokens)
        for line in filter(None, (note, template_note(generator))):
            say(f"{name}: {line}")
    best_of = options.best_of or min(most, BEST_OF if judges else 1)
    weights = {select: 1.0} if select else {}
    defaults = Defaults(best_of, most, sampling, weights, options.prompt, options.first_message)
    revisions = {name: model_revisions(policy, judges) for name, policy in policies.items()}
    info = {
        "policies": {name: revision.pop("generator") for name, revision in revisions.items()},
        "scorers": next(iter(revisions.values())),
    }
    return ChatModels(paths, policies, judges, defaults, options.queue, options.timeout, info)
