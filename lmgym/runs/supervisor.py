"""What keeps a run under way from being lost: checkpoints, signals, stalls. One object for every stage's loop."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, final

import torch

from lmgym.console import say
from lmgym.distributed.ranks import all_gather_objects, rank
from lmgym.distributed.weights import non_finite_weight, own_weights
from lmgym.errors import INTERRUPTED, NON_FINITE, STALLED, RunStopped
from lmgym.runs.checkpoints import Checkpoints
from lmgym.runs.files import storage_full
from lmgym.runs.interrupts import Interrupts
from lmgym.runs.layout import NON_FINITE as NON_FINITE_ROWS
from lmgym.runs.resuming import FOLDER, Start
from lmgym.runs.run import Run
from lmgym.runs.stalls import StallWatch


@final
class Supervisor:
    """Watches over a run from `with` to its end. `facts` go into each checkpoint; `limit` of them are kept."""

    checkpoint_bytes = 0
    """about how large one is, once that is known"""

    def __init__(self, run: Run, start: Start, facts: Mapping[str, Any], limit: int, stall_timeout: float) -> None:
        self._run, self._facts = run, facts
        self._checkpoints = Checkpoints(run.folder / FOLDER, start.run_id, limit)
        self._interrupts = Interrupts(self._leave_interrupted)
        self._stalls = StallWatch(run.folder, stall_timeout, self._leave_stalled)

    def __enter__(self) -> "Supervisor":
        self._interrupts.__enter__()
        self._stalls.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stalls.__exit__(kind, error, trace)
        self._interrupts.__exit__(kind, error, trace)

    @property
    def stop_requested(self) -> bool:
        """Whether this rank was asked, or cannot write; ranks must agree before any of them acts on it."""
        return bool(self._interrupts.reason or self._run.unwritten)

    def heartbeat(self, doing: str) -> None:
        """Progress: no stall."""
        self._stalls.heartbeat(doing)

    def save(self, step: int, write: Callable[[Path], None], model: torch.nn.Module) -> None:
        """A checkpoint of a model after `step` updates; `write` is called on every rank. Collective.

        Raises RunStopped on every rank: exit 65 where a weight is not finite, 74 where the disk takes no more. What was
        there before stays whole.
        """
        self.heartbeat(f"saving checkpoint {step}")
        self._refuse_unwritten()
        self._refuse_non_finite_weights(model)
        self._checkpoints.save(step, write, self._facts, self.checkpoint_bytes)
        self.heartbeat(f"after checkpoint {step}")

    @contextlib.contextmanager
    def saving_results(self, model: torch.nn.Module) -> Iterator[None]:
        """Within, the main rank writes the model and what else the run leaves. Collective.

        Raises RunStopped on every rank: exit 65 where a weight is not finite, 74 where the disk takes no more.
        """
        self.heartbeat("saving the model")
        self._refuse_unwritten()
        self._refuse_non_finite_weights(model)
        with self._run.writing("its results"):
            yield
        self._refuse_unwritten()

    def _refuse_unwritten(self) -> None:
        """Ends a run that cannot write: a step whose line of metrics is lost must be made again. Collective."""
        unwritten = next(filter(None, all_gather_objects(self._run.unwritten)), "")
        if unwritten:
            error = storage_full(unwritten, self._run.folder, self._checkpoints.last())
            self._end(error.why, error.outcome, error.exit_code)

    def _refuse_non_finite_weights(self, model: torch.nn.Module) -> None:
        found = all_gather_objects(non_finite_weight(own_weights(model)))
        if not any(found):
            return
        last = all_gather_objects(self._checkpoints.last() if rank() == 0 else "")[0]
        what = next(filter(None, found))
        self._end(
            f"the weights are not all finite: found {what}; they were not saved; {last}; use a smaller learning rate",
            "non_finite",
            NON_FINITE,
        )

    def _end(self, why: str, outcome: str, code: int) -> NoReturn:
        """Records how the run ended, and raises RunStopped, on every rank once all are here. Collective."""
        self._interrupts.leaving = code
        error = RunStopped(why, outcome, code)
        self._run.finish(outcome, code, error)
        all_gather_objects(None)  # a launcher kills the others once one has left
        raise error

    def stop_interrupted(self, step: int) -> None:
        """Ends an interrupted run, whose checkpoint is saved. Raises RunStopped (exit 75) on every rank."""
        self._interrupts.leaving = INTERRUPTED
        reason = next(filter(None, all_gather_objects(self._interrupts.reason)), "asked to stop")
        why = f"{reason}: stopped after update {step}, with a checkpoint; the same command goes on from there"
        self._end(why, "interrupted", INTERRUPTED)

    def stop_non_finite(self, step: int, what: str, rows: list[str]) -> None:
        """Ends a run whose loss or gradient is not finite, before the weights change; names the rows. Collective.

        `what` was found on this rank (empty: nothing), with `rows` at hand. Raises RunStopped (exit 65) on every rank.
        """
        self._interrupts.leaving = NON_FINITE
        found = all_gather_objects((what, rows))
        last = all_gather_objects(self._checkpoints.last() if rank() == 0 else "")[0]
        self._run.write_json(
            NON_FINITE_ROWS,
            {
                "update": step + 1,
                "ranks": [{"rank": i, "found": said, "rows": names} for i, (said, names) in enumerate(found)],
            },
        )
        ranks = [i for i, (said, _) in enumerate(found) if said]
        why = (
            f"update {step + 1}: {found[ranks[0]][0]} on rank {', '.join(map(str, ranks))}; the weights are as after "
            f"update {step}; the rows at hand are in {self._run.folder / NON_FINITE_ROWS}: mend or drop them, or use "
            f"a smaller learning rate; {last}"
        )
        self._end(why, "non_finite", NON_FINITE)

    def _leave_interrupted(self, why: str) -> None:
        self._run.finish("interrupted", INTERRUPTED, RunStopped(why, "interrupted", INTERRUPTED))

    def _leave_stalled(self, why: str) -> None:
        say(f"error: {why}", error=True)
        if rank() == 0:
            self._run.finish("stalled", STALLED, RunStopped(why, "stalled", STALLED))
