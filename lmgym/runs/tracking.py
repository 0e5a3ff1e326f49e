"""Trackers of metrics in addition to the run's files: none, or wandb, online or offline.

The files are the record and a tracker is a convenience: so no tracker asks a question or stops a run by failing.
Tokens come from the environment only.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from lmgym.console import say
from lmgym.errors import InputError, one_line, shown

Tracking = Literal["auto", "wandb", "offline", "none"]

# lmgym's names of 2023, which people's shells and job files may still set, and the names that libraries read
ORIGINAL_TOKEN_NAMES = {"WANDB_AUTH_TOKEN": "WANDB_API_KEY", "HUGGINGFACE_TOKEN": "HF_TOKEN"}
INIT_SECONDS = 30.0
FINISH_SECONDS = 120.0


class Tracker(Protocol):
    """A destination of metrics in addition to the run's files."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of one step."""

    def finish(self) -> None:
        """Sends what is left; nothing is logged afterwards."""


@dataclass(frozen=True)
class TrackingChoice:
    """The tracker of a run, and the reason for it."""

    mode: Literal["online", "offline", "none"]
    why: str

    def __str__(self) -> str:
        place = {"online": "metrics.jsonl and wandb", "offline": "metrics.jsonl and wandb, offline"}
        return f"tracking: {place.get(self.mode, 'metrics.jsonl only')} ({self.why})"


def start_tracker(tracking: Tracking, folder: Path, config: dict[str, Any], name: str) -> Tracker:
    """Starts the requested tracker, prints it in one line, and protects the run against its failures."""
    adopt_original_token_names()
    choice = choose(tracking, os.environ)
    say(choice)
    return SafeTracker(lambda: None if choice.mode == "none" else WandbTracker(choice.mode, folder, config, name))


def choose(tracking: str, environment: Mapping[str, str]) -> TrackingChoice:
    """The tracker for a --tracking. WANDB_MODE can make it offline or none; online needs a key."""
    if tracking not in get_args(Tracking):
        raise InputError(f"tracking={shown(tracking)}; needed one of {', '.join(get_args(Tracking))}")
    mode = environment.get("WANDB_MODE", "")
    if tracking == "none":
        return TrackingChoice("none", "as requested")
    if mode == "disabled":
        return TrackingChoice("none", "WANDB_MODE=disabled")
    if tracking == "offline":
        return TrackingChoice("offline", "as requested")
    if mode in ("offline", "dryrun"):
        return TrackingChoice("offline", f"WANDB_MODE={mode}")
    if _first(environment, "WANDB_API_KEY", "WANDB_AUTH_TOKEN"):
        return TrackingChoice("online", "WANDB_API_KEY found; --tracking none for files alone")
    if tracking == "wandb":
        return TrackingChoice("offline", "no WANDB_API_KEY found; set it, or send the run later with `wandb sync`")
    return TrackingChoice("none", "no WANDB_API_KEY found; --tracking offline records a wandb run without one")


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


class SafeTracker:
    """A tracker that is dropped, with a warning of one line, at its first failure; `start` may return None."""

    def __init__(self, start: Callable[[], Tracker | None]) -> None:
        self._tracker: Tracker | None = None
        self._tracker = self._attempt("start", start)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of one step."""
        if tracker := self._tracker:
            self._attempt("log", lambda: tracker.log(step, metrics))

    def finish(self) -> None:
        """Finishes the tracker and drops it."""
        if tracker := self._tracker:
            self._attempt("finish", tracker.finish)
        self._tracker = None

    def _attempt(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            self._tracker = None
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            say(f"warning: wandb failed to {name} ({reason}); the run continues with metrics.jsonl only")
            return None


class WandbTracker:
    """A wandb run inside the run's folder, in the project WANDB_PROJECT or `lmgym`."""

    def __init__(self, mode: Literal["online", "offline"], folder: Path, config: dict[str, Any], name: str) -> None:
        # imported here: it takes half a second, and some machines do not have it
        import wandb

        # without limits a dead network holds a finished run for days; silent, because we print the line above
        limits: dict[str, Any] = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS, "silent": True}
        known = {key: value for key, value in limits.items() if key in wandb.Settings.model_fields}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lmgym"),
            dir=str(folder),
            name=name,
            config=config,
            mode=mode,
            reinit="create_new",  # a second run in one process is a separate wandb run
            settings=wandb.Settings(**known),
        )
        # wandb drops a line whose own step is behind; with a step metric, a late probe keeps its step
        self._run.define_metric("*", step_metric="step")
        if mode == "online":
            say(f"tracking: {self._run.url}")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics with their step."""
        self._run.log({"step": step, **metrics})

    def finish(self) -> None:
        """Sends what is left, for two minutes at most; the rest stays in the folder for `wandb sync`."""
        self._run.finish()
