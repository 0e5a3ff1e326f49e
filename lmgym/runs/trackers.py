"""The trackers themselves: TensorBoard, wandb and trackio. Each imports its package when it starts, and only then.

A resumed run is one run in each of them, and has no step twice: it repeats the steps after its checkpoint, of which
TensorBoard forgets the first ones, and wandb and trackio get only those that they do not have.
"""

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lmgym.config import SharingConfig
from lmgym.console import say
from lmgym.runs.layout import is_final, logged_lines

INIT_SECONDS = 30.0
FINISH_SECONDS = 120.0
FLUSH_SECONDS = 10

Line = tuple[int, dict[str, float]]
"""a step, and its metrics"""


@dataclass(frozen=True)
class TrackedRun:
    """The facts of a run that trackers are given."""

    folder: Path
    name: str
    """of the experiment"""
    id: str
    """the same in every launch of the run"""
    config: Mapping[str, Any]
    sharing: SharingConfig = field(default_factory=SharingConfig)
    resumed_at: int | None = None
    """number of updates before a resumed run"""
    former_log: Path | None = None
    """metrics of the launch before this one, with those after the checkpoint"""

    @property
    def shown_name(self) -> str:
        """As trackers show it."""
        return self.sharing.run_name or os.environ.get("WANDB_NAME") or self.name

    @property
    def project(self) -> str:
        """Of wandb and trackio."""
        return self.sharing.wandb_project or os.environ.get("WANDB_PROJECT") or "lmgym"

    def kept_lines(self) -> list[Line]:
        """The lines up to the checkpoint, in order; none in a new run."""
        return list(_lines(self.folder / "metrics.jsonl")) if self.resumed_at is not None else []

    def former_lines(self) -> int:
        """The number of lines that the launch before this one had logged, up to its checkpoint and after it."""
        return sum(1 for _ in _lines(self.former_log)) if self.former_log else 0


def _lines(log: Path) -> Iterator[Line]:
    """The lines of metrics that trackers get, without final figures."""
    for step, line in logged_lines(log):
        metrics = {name: value for name, value in line.items() if name not in ("step", "time", "non_finite")}
        if not is_final(metrics):
            yield step, {name: float("nan") if value is None else float(value) for name, value in metrics.items()}


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
    """A wandb run inside the run's folder, with the run's id: a resumed run goes on with the same one.

    wandb's own step is the number of the line in metrics.jsonl, of which wandb says how many it has: those that are
    missing, because a kill took them, are sent again, and those that a resumed run repeats are not. The metric `step`
    is the number of updates, at which a late evaluation keeps its place.
    """

    def __init__(self, mode: Literal["online", "offline"], run: TrackedRun) -> None:
        # imported here: it takes half a second, and some machines do not have it
        import wandb

        # without limits a dead network holds a finished run for days; silent, because we print the line above
        limits: dict[str, Any] = {"init_timeout": INIT_SECONDS, "finish_timeout": FINISH_SECONDS, "silent": True}
        known = {key: value for key, value in limits.items() if key in wandb.Settings.model_fields}
        tags = [tag.strip() for tag in (run.sharing.wandb_tags or "").split(",") if tag.strip()]
        self._run = wandb.init(
            project=run.project,
            entity=run.sharing.wandb_entity,  # None: of the environment, as the next two
            group=run.sharing.wandb_group,
            tags=tags or None,
            dir=str(run.folder),
            id=run.id,
            resume="allow" if mode == "online" else None,
            name=run.shown_name,
            config=dict(run.config),
            mode=mode,
            reinit="create_new",  # a second run in one process is a separate wandb run
            settings=wandb.Settings(**known),
        )
        # wandb drops a line whose own step is behind; with a step metric, a late probe keeps its step
        self._run.define_metric("*", step_metric="step")
        self.about = {"id": run.id, "project": run.project, "name": run.shown_name}
        if mode == "online":
            self.about["url"] = str(self._run.url)
            say(f"tracking: {self._run.url}")
        kept = run.kept_lines()
        self._has = run.former_lines() if mode == "offline" else self._run.starting_step
        self._next = min(self._has, len(kept))
        for step, metrics in kept[self._next :]:
            self.log(step, metrics)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics with their step, unless wandb has this line."""
        line = self._next - is_final(metrics)  # final figures join the last line
        self._next = line + 1
        if line >= self._has:
            self._run.log({"step": step, **metrics}, step=line)

    def finish(self) -> None:
        """Sends what is left, for two minutes at most; the rest stays in the folder for `wandb sync`."""
        self._run.finish()


class TrackioTracker:
    """A run of trackio: a local data base, or the Space of TRACKIO_SPACE_ID. A resumed run has the same name there."""

    def __init__(self, run: TrackedRun) -> None:
        # imported here: the package is optional
        import trackio

        # a name of its own, because trackio finds a run to go on with by its name
        chosen = run.sharing.run_name or os.environ.get("WANDB_NAME")
        name = chosen or f"{run.name}-{run.id[:8]}"
        with contextlib.redirect_stdout(io.StringIO()):  # it prints several lines about itself
            self._run = trackio.init(
                run.project,
                name,
                group=run.sharing.wandb_group or os.environ.get("WANDB_RUN_GROUP"),
                config={key: value for key, value in run.config.items() if not key.startswith("_")},
                resume="never" if run.resumed_at is None else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self.about = {"project": run.project, "name": name}
        self._last = -1 if run.resumed_at is None else _last_step(run.project, name)
        say(f"tracking: trackio show --project {run.project}")
        for step, metrics in run.kept_lines():
            self.log(step, metrics)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics with their step, unless trackio had this step when the run was resumed."""
        if step > self._last:
            self._run.log(metrics, step=step)

    def finish(self) -> None:
        """Writes what is left."""
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


def _last_step(project: str, name: str) -> int:
    """The last step that trackio has of a run; -1 if it has none."""
    from trackio.sqlite_storage import SQLiteStorage

    last = SQLiteStorage.get_max_step_for_run(project, name)
    return -1 if last is None else int(last)
