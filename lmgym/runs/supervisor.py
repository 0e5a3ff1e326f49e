"""Protects a run in progress: checkpoints, signals and stalls, in one object for every stage's loop."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, final

import torch

from lmgym.distributed.ranks import all_gather_objects, rank
from lmgym.distributed.weights import non_finite_weight, own_weights
from lmgym.errors import INTERRUPTED, NON_FINITE, RunStopped
from lmgym.runs.checkpoints import Checkpoints
from lmgym.runs.files import storage_full
from lmgym.runs.interrupts import Interrupts
from lmgym.runs.layout import NON_FINITE as NON_FINITE_ROWS
from lmgym.runs.resuming import FOLDER, Start
from lmgym.runs.run import Run
from lmgym.runs.stalls import StallWatch


@final
class Supervisor:
    """Supervises a run within `with`. `facts` go into each checkpoint; `limit` checkpoints are kept."""

    checkpoint_bytes = 0
    """the approximate size of a checkpoint, once it is known"""

    def __init__(self, run: Run, start: Start, facts: Mapping[str, Any], limit: int, stall_timeout: float) -> None:
        self._run, self._facts = run, facts
        self._checkpoints = Checkpoints(run.folder / FOLDER, start.run_id, limit)
        self._interrupts = Interrupts(self._record_interrupted)
        self._stalls = StallWatch(run.folder, stall_timeout)

    def __enter__(self) -> "Supervisor":
        self._interrupts.__enter__()
        self._stalls.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._stalls.__exit__(kind, error, trace)
        self._interrupts.__exit__(kind, error, trace)

    @property
    def run_id(self) -> str:
        """The id of the run, which its checkpoints carry; the same on all ranks."""
        return self._checkpoints.owner

    @property
    def stop_requested(self) -> bool:
        """True if this rank was asked to stop or cannot write; reduce it over ranks before acting on it."""
        return bool(self._interrupts.reason or self._run.write_error)

    def heartbeat(self, doing: str) -> None:
        """Reports progress and the next activity to the stall watch."""
        self._stalls.heartbeat(doing)

    def save(self, step: int, write: Callable[[Path], None], model: torch.nn.Module) -> None:
        """Saves a checkpoint of a model after `step` updates; `write` is called on every rank. Collective.

        Raises RunStopped on every rank: exit 65 for a non-finite weight, 74 for a full disk. The checkpoint before it
        stays complete.
        """
        self.heartbeat(f"saving checkpoint {step}")
        self._refuse_write_error()
        self._refuse_non_finite_weights(model)
        self._checkpoints.save(step, write, self._facts, self.checkpoint_bytes)
        self._record_cost()
        self.heartbeat(f"after checkpoint {step}")

    @contextlib.contextmanager
    def saving_results(self, model: torch.nn.Module) -> Iterator[None]:
        """Context manager in which the main rank writes the model and the other results. Collective.

        Raises RunStopped on every rank: exit 65 for a non-finite weight, 74 for a full disk.
        """
        self.heartbeat("saving the model")
        self._refuse_write_error()
        self._refuse_non_finite_weights(model)
        with self._run.writing("its results"):
            yield
        self._record_cost()
        self._refuse_write_error()
        self._run.publish()

    def stop_interrupted(self, step: int) -> None:
        """Stops an interrupted run after its checkpoint is saved. Raises RunStopped (exit 75) on every rank."""
        self._interrupts.exit_code = INTERRUPTED
        reason = self._first(self._interrupts.reason) or "asked to stop"
        why = f"{reason}: stopped after update {step}, with a checkpoint; the same command resumes from it"
        self._stop(RunStopped(why, "interrupted", INTERRUPTED))

    def stop_non_finite(self, step: int, what: str, rows: list[str]) -> None:
        """Stops a run with a non-finite loss or gradient before the weights change; names the rows. Collective.

        `what` was found on this rank (empty: nothing) in `rows`. Raises RunStopped (exit 65) on every rank.
        """
        self._interrupts.exit_code = NON_FINITE
        ranks = [{"rank": i, "found": w, "rows": r} for i, (w, r) in enumerate(all_gather_objects((what, rows)))]
        self._run.write_json(NON_FINITE_ROWS, {"update": step + 1, "ranks": ranks})
        faulty = [entry for entry in ranks if entry["found"]]
        why = (
            f"update {step + 1}: {faulty[0]['found']} on rank {', '.join(str(entry['rank']) for entry in faulty)}; the "
            f"weights are as after update {step}; its rows are in {self._run.folder / NON_FINITE_ROWS}: fix or remove "
            f"them, or use a smaller learning rate; {self._last_checkpoint()}"
        )
        self._stop(RunStopped(why, "non_finite", NON_FINITE))

    def _record_cost(self) -> None:
        """Records the CPU time of all ranks. Collective."""
        self._run.record_cost(all_gather_objects(self._run.cpu_seconds))

    def _refuse_write_error(self) -> None:
        """Stops a run that cannot write: a step whose metrics are lost must be repeated. Collective."""
        if write_error := self._first(self._run.write_error):
            self._stop(storage_full(write_error, self._run.folder, self._checkpoints.last()))

    def _refuse_non_finite_weights(self, model: torch.nn.Module) -> None:
        if weight := self._first(non_finite_weight(own_weights(model))):
            why = (
                f"the weights are not all finite: found {weight}; they were not saved; {self._last_checkpoint()}; use "
                "a smaller learning rate"
            )
            self._stop(RunStopped(why, "non_finite", NON_FINITE))

    def _stop(self, stopped: RunStopped) -> NoReturn:
        """Records the outcome and raises RunStopped on every rank, after all have arrived. Collective."""
        self._interrupts.exit_code = stopped.exit_code
        self._run.finish(stopped.outcome, stopped.exit_code, stopped)
        all_gather_objects(None)  # a barrier: a launcher kills the other ranks once one has exited
        raise stopped

    @staticmethod
    def _first(text: str) -> str:
        """The first text of a rank that is not empty; empty if there is none. Collective."""
        return next(filter(None, all_gather_objects(text)), "")

    def _last_checkpoint(self) -> str:
        return all_gather_objects(self._checkpoints.last() if rank() == 0 else "")[0]

    def _record_interrupted(self, why: str) -> None:
        self._run.finish("interrupted", INTERRUPTED, RunStopped(why, "interrupted", INTERRUPTED))
