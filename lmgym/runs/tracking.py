"""Trackers of metrics in addition to the run's files: wandb, online or offline, TensorBoard, both, or none.

The files are the record and a tracker is a convenience: so no tracker asks a question or stops a run by failing.
Tokens come from the environment only.
"""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from lmgym.console import say
from lmgym.errors import InputError, one_line, shown

Tracking = Literal["auto", "wandb", "offline", "tensorboard", "wandb,tensorboard", "offline,tensorboard", "none"]
TENSORBOARD = "tensorboard"
"""the choice, the package, and the folder of the event files in a run's folder"""

# lmgym's names of 2023, which people's shells and job files may still set, and the names that libraries read
ORIGINAL_TOKEN_NAMES = {"WANDB_AUTH_TOKEN": "WANDB_API_KEY", "HUGGINGFACE_TOKEN": "HF_TOKEN"}
INIT_SECONDS = 30.0
FINISH_SECONDS = 120.0
FLUSH_SECONDS = 10


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

    def __str__(self) -> str:
        wandb = {"online": ["wandb"], "offline": ["wandb, offline"], "none": []}[self.mode]
        places = [*([TENSORBOARD] if self.tensorboard else []), *wandb]
        return f"tracking: {' and '.join(['metrics.jsonl', *places]) if places else 'metrics.jsonl only'} ({self.why})"


def start_tracker(
    tracking: Tracking, folder: Path, config: dict[str, Any], name: str, resumed_at: int | None = None
) -> Tracker:
    """Starts the requested trackers, prints them in one line, and protects the run against their failures.

    `resumed_at` is the number of updates before a resumed run, whose later steps TensorBoard then forgets.
    """
    adopt_original_token_names()
    choice = choose(tracking, os.environ)
    say(choice)
    trackers = []
    if choice.tensorboard:
        trackers.append(SafeTracker(TENSORBOARD, lambda: TensorBoardTracker(folder / TENSORBOARD, resumed_at)))
    if (mode := choice.mode) != "none":
        trackers.append(SafeTracker("wandb", lambda: WandbTracker(mode, folder, config, name)))
    return Trackers(trackers)


def choose(tracking: str, environment: Mapping[str, str]) -> TrackingChoice:
    """The trackers for a --tracking. WANDB_MODE can make wandb offline or none; online needs a key."""
    if tracking not in get_args(Tracking):
        raise InputError(f"tracking={shown(tracking)}; needed one of {', '.join(map(repr, get_args(Tracking)))}")
    names = tracking.split(",")
    mode, why = _choose_wandb(names[0], environment)
    return TrackingChoice(mode, why, TENSORBOARD in names)


def _choose_wandb(name: str, environment: Mapping[str, str]) -> tuple[Literal["online", "offline", "none"], str]:
    """(the mode of wandb, the reason)."""
    mode = environment.get("WANDB_MODE", "")
    if name in ("none", TENSORBOARD):
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
    """Raises InputError if TensorBoard is asked for and is not installed."""
    if TENSORBOARD in tracking.split(",") and importlib.util.find_spec(TENSORBOARD) is None:
        raise InputError(
            f"--tracking {tracking} needs the package tensorboard, which is not installed; "
            'pip install "lmgym[tensorboard]", or choose another --tracking'
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


class Trackers:
    """Several trackers as one; with none of them, it does nothing."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = trackers

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of one step."""
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def finish(self) -> None:
        """Finishes each."""
        for tracker in self._trackers:
            tracker.finish()


class SafeTracker:
    """A tracker that is dropped, with a warning of one line that names it, at its first failure."""

    def __init__(self, name: str, start: Callable[[], Tracker]) -> None:
        self._name = name
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

    def _attempt(self, action: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            self._tracker = None
            reason = one_line(f"{type(error).__name__}: {error}", 300)
            say(f"warning: {self._name} failed to {action} ({reason}); the run continues without it")
            return None


class TensorBoardTracker:
    """Event files of TensorBoard: a scalar for each metric."""

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        # imported here: the package is optional, and takes a second
        from torch.utils.tensorboard import SummaryWriter

        # readers forget the steps that the resumed run repeats
        purge_step = None if resumed_at is None else resumed_at + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=FLUSH_SECONDS)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics with their step."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Writes what is left."""
        self._writer.close()


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
