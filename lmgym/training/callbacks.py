"""Callbacks of Hugging Face's Trainer: stopping when asked to, and the status line."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from transformers import TrainerCallback

from lmgym.distributed.ranks import rank
from lmgym.report.status_line import StatusLine


class StopWhenAsked(TrainerCallback):
    """Ends the training, with a checkpoint, after the update in which a rank was asked to stop."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.stopping = stopping

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """After an update."""
        if self.stopping():
            control.should_save = control.should_training_stop = True


class ShowStatus(TrainerCallback):
    """The status line of the training, on the main rank, with the newest figures."""

    SHOWN = MappingProxyType(
        {
            "train/tokens_per_second": "{:,.0f} tok/s",
            "train/loss": "loss {:.3g}",
            "train/accuracy": "accuracy {:.3f}",
            "eval/accuracy": "eval accuracy {:.3f}",
            "eval/perplexity": "eval perplexity {:.4g}",
        }
    )

    def __init__(self) -> None:
        self.line = StatusLine("training", 0, "updates", shown=False)
        self.figures: dict[str, str] = {}
        self.alarm = ""

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Begins the line, which whatever is printed at the end erases."""
        self.line = StatusLine("training", state.max_steps, "updates", shown=rank() == 0)
        self.line.begin(state.global_step)

    def doing(self, activity: str) -> None:
        """Shows what happens between two updates."""
        self.line.update(doing=activity)

    def watch(self, losses: Mapping[int, float]) -> None:
        """Raises the alarm while the last held-out loss, by number of updates, is above the lowest."""
        rises = bool(losses) and f"{losses[max(losses)]:.4g}" != f"{min(losses.values()):.4g}"
        self.alarm = "ALARM: the held-out loss rises" if rises else ""

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """Training begins after the first evaluation."""
        if state.global_step == 0:
            self.line.begin(0)
        self.line.update(doing="", figures=self._shown())

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Counts the update."""
        self.line.update(state.global_step, doing="")

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Shows the newest figures."""
        self.figures |= {name: form.format(logs[name]) for name, form in self.SHOWN.items() if name in (logs or {})}
        self.line.update(figures=self._shown())

    def _shown(self) -> list[str]:
        return [*filter(None, [self.alarm]), *(self.figures[name] for name in self.SHOWN if name in self.figures)]
