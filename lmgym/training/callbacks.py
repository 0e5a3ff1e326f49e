"""Callbacks of Hugging Face's Trainer: stopping when asked to, files of answers, and the status line."""

import time
from collections.abc import Callable, Mapping

from transformers import TrainerCallback

from lmgym.aids import aid
from lmgym.distributed.ranks import rank
from lmgym.report.known_metrics import MAIN_METRICS
from lmgym.report.status_line import StatusLine, status_figure
from lmgym.runs.run import Run
from lmgym.training.reporting import show_notes, time_left
from lmgym.training.samples import SampleProbe

TIMED_UPDATES = 2
WAYS = "a smaller --max_length, fewer --epochs, --train_size, --lora_rank 16, more GPUs"


class StopWhenAsked(TrainerCallback):
    """Ends the training, with a checkpoint, after the update in which a rank was asked to stop."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.stopping = stopping

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """After an update."""
        if self.stopping():
            control.should_save = control.should_training_stop = True


class LogAtEvaluations(TrainerCallback):
    """Logs the training metrics at each evaluation and after the last update too: a short run has a curve as well."""

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """After the Trainer has decided whether to evaluate."""
        control.should_log |= control.should_evaluate or state.global_step >= state.max_steps


class KeepSamples(TrainerCallback):
    """Writes the answers of each evaluation to a file in samples/."""

    def __init__(self, probe: SampleProbe, run: Run) -> None:
        self.probe, self.run = probe, run

    @aid("the file of answers")
    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """After the probes."""
        if self.probe.rows:
            rows = [{"step": state.global_step, **row} for row in self.probe.rows]
            self.run.write_lines(f"samples/{state.global_step:06d}.jsonl", rows)


class ShowStatus(TrainerCallback):
    """The status line of the training, on the main rank, with the newest figures."""

    SHOWN = ("train/tokens_per_second", "train/loss", "train/accuracy", "train/token_accuracy", *MAIN_METRICS)
    """metrics in the order in which they are shown, as far as there is room"""

    def __init__(self) -> None:
        self.line = StatusLine("training", 0, "updates", shown=False)
        self.figures: dict[str, str] = {}
        self.alarm = ""
        self._timed: tuple[int, float] | None = None  # the update after which, and the time at which, it began
        self._evaluation = 0.0  # seconds of the one before the first update

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Begins the line, which whatever is printed at the end erases."""
        self.line = StatusLine("training", state.max_steps, "updates", shown=rank() == 0)
        self.line.begin(state.global_step)
        self._began = time.monotonic()

    def doing(self, activity: str) -> None:
        """Shows what happens between two updates."""
        self.line.update(doing=activity)

    def watch(self, losses: Mapping[int, float]) -> None:
        """Raises the alarm while the last held-out loss, by number of updates, is above the lowest."""
        if losses:
            rises = f"{losses[max(losses)]:.4g}" != f"{min(losses.values()):.4g}"
            self.alarm = "ALARM: the held-out loss rises" if rises else ""

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """Training begins after the first evaluation."""
        if state.global_step == 0:
            self.line.begin(0)
            self._evaluation = time.monotonic() - self._began
        self.line.update(doing="", figures=self._shown())

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Counts the update, and says once how long the others take: the first one is no measure of them."""
        self.line.update(state.global_step, doing="")
        now, done, left = time.monotonic(), state.global_step, state.max_steps - state.global_step
        if self._timed is None:
            self._timed = (done, now)
        elif done == self._timed[0] + TIMED_UPDATES and left and rank() == 0:
            evaluations = self._evaluation * (left // args.eval_steps + 1)
            show_notes(time_left(left, (now - self._timed[1]) / TIMED_UPDATES, "updates", evaluations, WAYS))

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Shows the newest figures."""
        known = [name for name in self.SHOWN if name in (logs or {})]
        self.figures |= {name: status_figure(name, logs[name], state.global_step) for name in known}
        self.line.update(figures=self._shown())

    def _shown(self) -> list[str]:
        return [*filter(None, [self.alarm]), *(self.figures[name] for name in self.SHOWN if name in self.figures)]
