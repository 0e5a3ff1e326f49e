"""Trackers of metrics in addition to the run's files: wandb, online or offline, TensorBoard, both, trackio, or none.

The files are the record and a tracker is a convenience: so no tracker asks a question or stops a run by failing.
Tokens come from the environment only.
"""

import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final, get_args

from lmgym.aids import aid
from lmgym.config import Tracking
from lmgym.console import say
from lmgym.errors import InputError, shown
from lmgym.runs.trackers import TensorBoardTracker, TrackedRun, TrackioTracker, WandbTracker

TENSORBOARD, TRACKIO = "tensorboard", "trackio"
"""the choices and their packages; the first is also the folder of the event files in a run's folder"""

# lmgym's names of 2023, which people's shells and job files may still set, and the names that libraries read
ORIGINAL_TOKEN_NAMES = {"WANDB_AUTH_TOKEN": "WANDB_API_KEY", "HUGGINGFACE_TOKEN": "HF_TOKEN"}


class Tracker(Protocol):
    """A destination of metrics in addition to the run's files."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of one step."""

    def finish(self) -> None:
        """Sends what is left; nothing is logged afterwards."""


@dataclass(frozen=True)
class TrackingChoice:
    """The trackers of a run, and the reason for the mode of wandb."""

    mode: Literal["online", "offline", "none"]
    """of wandb"""
    why: str
    tensorboard: bool = False
    trackio: bool = False

    def __str__(self) -> str:
        wandb = {"online": ["wandb"], "offline": ["wandb, offline"], "none": []}[self.mode]
        places = [*([TENSORBOARD] if self.tensorboard else []), *([TRACKIO] if self.trackio else []), *wandb]
        return f"tracking: {' and '.join(['metrics.jsonl', *places]) if places else 'metrics.jsonl only'} ({self.why})"


def start_tracker(tracking: Tracking, run: TrackedRun) -> "Trackers":
    """Starts the requested trackers, prints them in one line, and protects the run against their failures."""
    adopt_original_token_names()
    choice = choose(tracking, os.environ)
    say(choice)
    trackers = Trackers()
    if choice.tensorboard:
        trackers.start(TENSORBOARD, lambda: TensorBoardTracker(run.folder / TENSORBOARD, run.resumed_at))
    if choice.trackio:
        trackers.start(TRACKIO, lambda: TrackioTracker(run))
    if (mode := choice.mode) != "none":
        trackers.start("wandb", lambda: WandbTracker(mode, run))
    return trackers


def choose(tracking: str, environment: Mapping[str, str]) -> TrackingChoice:
    """The trackers for a --tracking. WANDB_MODE can make wandb offline or none; online needs a key."""
    if tracking not in get_args(Tracking):
        raise InputError(f"tracking={shown(tracking)}; needed one of {', '.join(map(repr, get_args(Tracking)))}")
    names = tracking.split(",")
    mode, why = _choose_wandb(names[0], environment)
    return TrackingChoice(mode, why, TENSORBOARD in names, TRACKIO in names)


def _choose_wandb(name: str, environment: Mapping[str, str]) -> tuple[Literal["online", "offline", "none"], str]:
    """(the mode of wandb, the reason)."""
    mode = environment.get("WANDB_MODE", "")
    if name in ("none", TENSORBOARD, TRACKIO):
        return "none", "as requested"
    if mode == "disabled":
        return "none", "WANDB_MODE=disabled"
    if name == "offline":
        return "offline", "as requested"
    if mode in ("offline", "dryrun"):
        return "offline", f"WANDB_MODE={mode}"
    if _first(environment, "WANDB_API_KEY", "WANDB_AUTH_TOKEN"):
        return "online", "WANDB_API_KEY found; --tracking none for files alone"
    if name == "wandb":
        return "offline", "no WANDB_API_KEY found; set it, or send the run later with `wandb sync`"
    return "none", "no WANDB_API_KEY found; --tracking offline records a wandb run without one"


def refuse_missing_tracker(tracking: str) -> None:
    """Raises InputError if a tracker is asked for whose optional package is not installed."""
    for package in (TENSORBOARD, TRACKIO):
        if package in tracking.split(",") and importlib.util.find_spec(package) is None:
            raise InputError(
                f"--tracking {tracking} needs the package {package}, which is not installed; "
                f'pip install "lmgym[{package}]", or choose another --tracking'
            )


def hub_token() -> str | None:
    """The Hugging Face token of the environment, under the current name or the original one."""
    return _first(os.environ, "HF_TOKEN", "HUGGINGFACE_TOKEN")


def adopt_original_token_names() -> None:
    """Sets the names that libraries read where only the original names are set. Call it before a library reads them."""
    for original, name in ORIGINAL_TOKEN_NAMES.items():
        if os.environ.get(original) and not os.environ.get(name):
            os.environ[name] = os.environ[original]


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


@final
class Trackers:
    """Several trackers as one. One that fails is dropped, with a warning of one line that names it."""

    def __init__(self) -> None:
        self._trackers: dict[str, Tracker] = {}

    def start(self, name: str, start: Callable[[], Tracker]) -> None:
        """Adds a tracker, if it starts."""
        for tracker in _ask(name, "start", start):
            self._trackers[name] = tracker

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """Where the run is found on each tracker that says it."""
        return {name: about for name, one in self._trackers.items() if (about := getattr(one, "about", None))}

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of one step."""
        self._ask_all("log", lambda tracker: tracker.log(step, metrics))

    def finish(self) -> None:
        """Finishes each, and drops it."""
        self._ask_all("finish", lambda tracker: tracker.finish())
        self._trackers.clear()

    def _ask_all(self, action: str, call: Callable[[Tracker], None]) -> None:
        answered = {name: _ask(name, action, call, tracker) for name, tracker in self._trackers.items()}
        self._trackers = {name: tracker for name, tracker in self._trackers.items() if answered[name]}


@aid("{0}: {1}", list, then="the run goes on without it")
def _ask(name: str, action: str, call: Callable[..., Any], *given: Any) -> list[Any]:
    """The answer of a tracker's call, as the only item; nothing if it fails."""
    return [call(*given)]
