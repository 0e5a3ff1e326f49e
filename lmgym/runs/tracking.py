"""Where metrics go besides the files of a run: nowhere, or to wandb, online or offline.

A tracker is a convenience and the files are the record: so no tracker asks a question, and none that fails stops a run.
Tokens come from the environment only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from lmgym.console import say
from lmgym.errors import InputError, one_line, shown

Tracking = Literal["auto", "wandb", "offline", "none"]

# the names of 2023, still in people's shells and job files, and the names that the libraries read
ORIGINAL_TOKEN_NAMES = {"WANDB_AUTH_TOKEN": "WANDB_API_KEY", "HUGGINGFACE_TOKEN": "HF_TOKEN"}
INIT_SECONDS = 30.0
FINISH_SECONDS = 120.0


class Tracker(Protocol):
    """What a run hands its metrics to, besides its files."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of one step."""

    def finish(self) -> None:
        """Hands over what is still held; nothing is logged afterwards."""


@dataclass(frozen=True)
class Choice:
    """Where metrics go besides the files, and why, for people."""

    mode: Literal["online", "offline", "none"]
    why: str

    def __str__(self) -> str:
        place = {"online": "metrics.jsonl and wandb", "offline": "metrics.jsonl and wandb, offline"}
        return f"tracking: {place.get(self.mode, 'metrics.jsonl only')} ({self.why})"


def start_tracker(tracking: Tracking, folder: Path, config: dict[str, Any], name: str) -> Tracker:
    """Starts the tracker that was asked for, says so in one line and guards the run against its failures."""
    adopt_original_token_names()
    choice = choose(tracking, os.environ)
    say(choice)
    tracker = Guarded()
    if choice.mode != "none":
        tracker.start(choice.mode, folder, config, name)
    return tracker


def choose(tracking: str, environment: Mapping[str, str]) -> Choice:
    """What `tracking` means here. WANDB_MODE may take wandb offline or away; without a key nothing goes online."""
    if tracking not in get_args(Tracking):
        raise InputError(f"tracking={shown(tracking)}; needed one of {', '.join(get_args(Tracking))}")
    mode = environment.get("WANDB_MODE", "")
    if tracking == "none":
        return Choice("none", "as asked")
    if mode == "disabled":
        return Choice("none", "WANDB_MODE=disabled")
    if tracking == "offline":
        return Choice("offline", "as asked")
    if mode in ("offline", "dryrun"):
        return Choice("offline", f"WANDB_MODE={mode}")
    return _choose_by_key(tracking, _first(environment, "WANDB_API_KEY", "WANDB_AUTH_TOKEN") is not None)


def _choose_by_key(tracking: str, found: bool) -> Choice:
    if found:
        return Choice("online", "WANDB_API_KEY found; --tracking none for files alone")
    if tracking == "wandb":
        return Choice("offline", "no WANDB_API_KEY found; set it, or send the run later with `wandb sync`")
    return Choice("none", "no WANDB_API_KEY found; --tracking offline records a wandb run without one")


def hub_token() -> str | None:
    """The Hugging Face token of the environment, by today's name or the original's."""
    return _first(os.environ, "HF_TOKEN", "HUGGINGFACE_TOKEN")


def adopt_original_token_names() -> None:
    """Sets the names that libraries read where only the original's are set. Call it before a library looks."""
    for original, name in ORIGINAL_TOKEN_NAMES.items():
        if os.environ.get(original) and not os.environ.get(name):
            os.environ[name] = os.environ[original]


def _first(environment: Mapping[str, str], *names: str) -> str | None:
    return next((environment[name] for name in names if environment.get(name)), None)


class Guarded:
    """A tracker that is dropped, with one line, at its first failure; without one it does nothing."""

    def __init__(self, tracker: Tracker | None = None) -> None:
        self._tracker = tracker

    def start(self, mode: Literal["online", "offline"], folder: Path, config: dict[str, Any], name: str) -> None:
        """Starts wandb, here because its import and its start may fail like any call that follows."""
        try:
            self._tracker = WandbTracker(mode, folder, config, name)
        except Exception as error:
            self._drop("start", error)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Hands the metrics on."""
        try:
            if self._tracker:
                self._tracker.log(step, metrics)
        except Exception as error:
            self._drop("log", error)

    def finish(self) -> None:
        """Lets the tracker hand over what it holds, then lets go of it."""
        try:
            if self._tracker:
                self._tracker.finish()
        except Exception as error:
            self._drop("finish", error)
        self._tracker = None

    def _drop(self, doing: str, error: Exception) -> None:
        self._tracker = None
        reason = one_line(f"{type(error).__name__}: {error}", 300)
        say(f"warning: wandb failed to {doing} ({reason}); the run goes on with metrics.jsonl only")


class WandbTracker:
    """One wandb run inside the run's folder, in the project WANDB_PROJECT or `lmgym`."""

    def __init__(self, mode: Literal["online", "offline"], folder: Path, config: dict[str, Any], name: str) -> None:
        # half a second, and absent from some machines: only where it is used
        import wandb

        # without limits a dead network holds a finished run for days; silent, for the line above says it all
        limits: dict[str, Any] = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS, "silent": True}
        known = {key: value for key, value in limits.items() if key in wandb.Settings.model_fields}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "lmgym"),
            dir=str(folder),
            name=name,
            config=config,
            mode=mode,
            reinit="create_new",  # a second run of one process is a run of its own
            settings=wandb.Settings(**known),
        )
        # wandb drops a line whose own step is behind; as a metric, a late probe is kept at its step
        self._run.define_metric("*", step_metric="step")
        if mode == "online":
            say(f"tracking: {self._run.url}")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics with their step beside them."""
        self._run.log({"step": step, **metrics})

    def finish(self) -> None:
        """Sends what is left, for two minutes at most; what was not sent stays in the folder for `wandb sync`."""
        self._run.finish()
