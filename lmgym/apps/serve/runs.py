"""The runs that ask for rewards, watched by the scorers that they are not trained on, with PPO's alarm.

A request names its run and step. The means of a run's replies are read in windows of whole steps, and each window grows
with the run: so that few readings describe a run of any length, in bounded memory, and the alarm hears few of them.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any
from urllib.parse import unquote

import numpy as np
from fastapi import Header, Query, Request

from lmgym.apps.serve.batcher import Scored
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.served_scorers import Opinion, Sample
from lmgym.console import say
from lmgym.errors import shown
from lmgym.scoring import alarm
from lmgym.scoring.alarm import Alarm
from lmgym.text import words_of

MOST_RUNS = 64
FEWEST_REPLIES, FEWEST_GROUPS, GROWTH = 128, 8, 8
"""of a reading: replies and groups, and a GROWTH-th of the run's replies before it"""
MOST_OF_STEP = 8192
"""replies whose groups and duplicates are known; a larger step counts as several"""
STEP_SECONDS = 10.0
"""of a step, where requests name none"""
LATE_STEPS = 8
"""by which an asynchronous trainer's requests may come late"""
LONGEST_NAME = 100


@dataclass(frozen=True)
class Asking:
    """The run that a request belongs to, and its step."""

    run: str
    step: int | None


Step = Annotated[int | None, Query(ge=0, le=10**12)]
HeaderStep = Annotated[int | None, Header(ge=0, le=10**12)]
Name = Annotated[str | None, Query(max_length=LONGEST_NAME)]
HeaderName = Annotated[str | None, Header(max_length=12 * LONGEST_NAME)]


async def read_asking(
    request: Request,
    run: Name = None,
    step: Step = None,
    x_lmgym_run: HeaderName = None,
    x_lmgym_step: HeaderStep = None,
) -> None:
    """Notes the run that a request names, in its headers (percent-encoded) or its address."""
    name = unquote(x_lmgym_run or run or "").strip()
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise Refusal(400, f"the run's name is {shown(name)}; needed: at most {LONGEST_NAME} visible characters")
    request.state.asking = Asking(name, step if x_lmgym_step is None else x_lmgym_step) if name else None


@dataclass(frozen=True)
class Reading:
    """Means over the replies of consecutive steps."""

    first_step: int
    last_step: int
    replies: int
    groups: int
    """replies to one conversation in one step are a group"""
    means: dict[str, float]
    """of the replies' length in characters, of the share of duplicates, and of each scorer's figures"""
    errors: dict[str, float]
    """standard errors of the means of groups"""


@dataclass
class _Window:
    """Sums over the groups of whole steps."""

    groups: int = 0
    replies: int = 0
    distinct: int = 0
    total: np.ndarray = field(default_factory=lambda: np.zeros(0))
    squares: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def add(self, means: np.ndarray, replies: int, distinct: int) -> None:
        """Adds the [groups, figures] of a step."""
        if not self.groups:
            self.total, self.squares = np.zeros(means.shape[1]), np.zeros(means.shape[1])
        self.groups, self.replies = self.groups + len(means), self.replies + replies
        self.distinct += distinct
        self.total, self.squares = self.total + means.sum(0), self.squares + np.square(means).sum(0)

    def read(self, names: Sequence[str], first: int, last: int) -> Reading:
        """The means of the figures of these names."""
        mean = self.total / self.groups
        variance = np.maximum(self.squares / self.groups - mean**2, 0) / max(self.groups - 1, 1)
        means = dict(zip(names, mean.tolist(), strict=True))
        means["reply/duplicates"] = 1 - self.distinct / self.replies
        errors = dict(zip(names, np.sqrt(variance).tolist(), strict=True))
        return Reading(first, last, self.replies, self.groups, means, errors)


class Watch:
    """The replies of one run that are trained on one scorer."""

    def __init__(self, run: str, reward: str, scored: Mapping[str, Scored]) -> None:
        self.run, self.reward, self.weights = run, reward, weights_of(scored)
        self.readings: list[Reading] = []
        self.warnings: list[str] = []
        self.heard = self.began = time.monotonic()
        self.replies, self.first_step, self.step = 0, -1, -1
        self._names: list[str] = []
        self._groups: dict[int, tuple[int, np.ndarray]] = {}
        self._texts: set[int] = set()
        self._of_step = 0
        self._window, self._window_step = _Window(), -1
        self._alarms: dict[str, Alarm] = {}
        """by monitor"""

    def begins_again(self, step: int | None, scored: Mapping[str, Scored]) -> bool:
        """True if the run's name now means another run, or a scorer has other weights, whose scores do not compare."""
        restarted = step is not None and step <= self.first_step and step + LATE_STEPS < self.step
        return restarted or weights_of(scored) != self.weights

    def add(
        self, step: int | None, samples: Sequence[Sample], scored: Mapping[str, Scored], monitors: Sequence[str]
    ) -> None:
        """Adds the replies of a request; the first of a later step closes the one before."""
        self.heard = time.monotonic()
        step = int((self.heard - self.began) / STEP_SECONDS) if step is None else step
        if self.step >= 0 and (step > self.step or self._of_step >= MOST_OF_STEP):
            self._end_step(monitors)
        if self.first_step < 0:
            self.first_step = step
        self.step = max(self.step, step)
        if not self._window.groups and not self._groups:
            self._window_step = self.step
        for sample, *row in zip(samples, *(one.opinions for one in scored.values()), strict=True):
            figures = {"reply/characters": float(len(sample.text or words_of(sample.reply)))}
            for name, opinion in zip(scored, row, strict=True):
                figures |= _figures(name, opinion)
            self._names = self._names or list(figures)
            key = hash(sample.conversation if sample.text is None else sample.text)
            count, total = self._groups.get(key, (0, np.zeros(len(self._names))))
            self._groups[key] = count + 1, total + [figures.get(name, 0.0) for name in self._names]
            self._texts.add(hash(sample.text or words_of(sample.reply)))
        self.replies, self._of_step = self.replies + len(samples), self._of_step + len(samples)

    def _end_step(self, monitors: Sequence[str]) -> None:
        means = np.stack([total / count for count, total in self._groups.values()])
        self._window.add(means, self._of_step, len(self._texts))
        self._groups, self._texts, self._of_step = {}, set(), 0
        window = self._window
        enough = max(FEWEST_REPLIES, (self.replies - window.replies) / GROWTH)
        if window.replies >= enough and window.groups >= FEWEST_GROUPS:
            self.readings.append(window.read(self._names, self._window_step, self.step))
            self._window = _Window()
            self._sound(self.readings[-1], monitors)

    def _sound(self, reading: Reading, monitors: Sequence[str]) -> None:
        """Raises the alarm of each monitor whose score has fallen."""
        reward = self._of(reading, self.reward)
        for name in monitors:
            heard, score = self._alarms.setdefault(name, Alarm()), self._of(reading, name)
            was_raised = heard.raised_at >= 0
            on = heard.update(reading.last_step, reward, score, score.error * math.sqrt(score.units))
            if on and not was_raised:
                words = heard.message("step", f"monitor {name}", "raise the KL coefficient (beta)")
                self.warnings.append(words)
                say(f"run {shown(self.run)}: {words}", error=True)

    def _of(self, reading: Reading, name: str) -> alarm.Reading:
        """A scorer's mean over the groups, whose prompts are others in each reading."""
        return alarm.Reading(reading.means[name], reading.errors[name], reading.groups)

    def as_json(self) -> dict[str, Any]:
        """Everything that is known of the run."""
        state = {"run": self.run, "reward": self.reward, "monitors": list(self._alarms), "replies": self.replies}
        state |= {"first_step": self.first_step, "last_step": self.step, "weights": self.weights}
        state["seconds_since_request"] = round(time.monotonic() - self.heard, 1)
        state["alarms"] = {name: heard.raised_at for name, heard in self._alarms.items() if heard.raised_at >= 0}
        return state | {"warnings": self.warnings, "readings": [asdict(reading) for reading in self.readings]}


class Runs:
    """The runs of late; the one that has been silent longest makes room for a new one."""

    def __init__(self, stop_on_alarm: bool = False) -> None:
        self.stop_on_alarm = stop_on_alarm
        self._watches: OrderedDict[tuple[str, str], Watch] = OrderedDict()

    def check(self, asking: Asking, reward: str) -> None:
        """Raises Refusal for a run that is to be stopped."""
        watch = self._watches.get((asking.run, reward))
        if self.stop_on_alarm and watch and watch.warnings:
            words = f"run {shown(asking.run)} gets no more rewards (--stop_on_alarm; another LMGYM_RUN does): "
            raise Refusal(503, words + watch.warnings[0], 60, "run_stopped")

    def warnings(self, asking: Asking, reward: str) -> list[str]:
        """Those of a run up to now."""
        watch = self._watches.get((asking.run, reward))
        return list(watch.warnings) if watch else []

    def note(self, asking: Asking, reward: str, samples: Sequence[Sample], scored: Mapping[str, Scored]) -> None:
        """Adds a request's replies with the opinions of all scorers."""
        key = (asking.run, reward)
        watch = self._watches.get(key)
        if watch is None or watch.begins_again(asking.step, scored):
            watch = self._watches[key] = Watch(asking.run, reward, scored)
        self._watches.move_to_end(key)
        while len(self._watches) > MOST_RUNS:
            self._watches.popitem(last=False)
        trained_on = {reward for run, reward in self._watches if run == asking.run}
        watch.add(asking.step, samples, scored, [name for name in scored if name not in trained_on])

    def as_json(self) -> list[dict[str, Any]]:
        """The runs, that of the latest request first."""
        return [watch.as_json() for watch in reversed(self._watches.values())]

    @property
    def version(self) -> str:
        """Another one after each reading, for the page."""
        return str(hash(tuple((key, len(watch.readings)) for key, watch in self._watches.items())))


def weights_of(scored: Mapping[str, Scored]) -> dict[str, str]:
    """The fingerprint of each scorer."""
    return {name: scored[name].scorer.info["fingerprint"] for name in sorted(scored)}


def _figures(name: str, opinion: Opinion) -> dict[str, float]:
    """Figures of a scorer's opinion of a reply, under the names that OpenRLHF's logs have too."""
    found = {name: opinion.score}
    if opinion.z is not None:
        found[f"{name}/z"] = opinion.z  # the distance from its reference replies
    if opinion.quantile is not None:
        found[f"{name}/outside"] = float(opinion.quantile in (0, 1))  # of the range of their scores
    if opinion.spread is not None:
        found[f"{name}/spread"] = opinion.spread
    return found
