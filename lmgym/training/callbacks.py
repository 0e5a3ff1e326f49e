"""Callbacks of Hugging Face's Trainer: stopping when asked to, and the progress bar."""

from collections.abc import Callable
from types import MappingProxyType

from tqdm.auto import tqdm
from transformers import TrainerCallback

from lmgym.distributed.ranks import rank


class StopWhenAsked(TrainerCallback):
    """Ends the training, with a checkpoint, after the update in which a rank was asked to stop."""

    def __init__(self, stopping: Callable[[], bool]) -> None:
        self.stopping = stopping

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """After an update."""
        if self.stopping():
            control.should_save = control.should_training_stop = True


class Progress(TrainerCallback):
    """A progress bar on the main rank with the last loss and accuracy."""

    SHOWN = MappingProxyType(
        {
            "train/loss": "loss",
            "train/accuracy": "accuracy",
            "eval/accuracy": "eval accuracy",
            "eval/perplexity": "eval perplexity",
        }
    )

    def __init__(self) -> None:
        self.bar: tqdm | None = None
        self.figures: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Opens the bar."""
        if rank() == 0:
            self.bar = tqdm(
                total=state.max_steps,
                initial=state.global_step,
                unit="update",
                dynamic_ncols=True,
                mininterval=0.5,
                desc="training" if state.global_step else "evaluating before update 1",
            )

    def on_evaluate(self, args, state, control, **kwargs) -> None:
        """After the evaluation that comes first, training begins."""
        if self.bar is not None:
            self.bar.set_description("training")

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """One update on."""
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Shows the newest figures."""
        if self.bar is not None and logs:
            self.figures |= {shown: f"{logs[name]:.3f}" for name, shown in self.SHOWN.items() if name in logs}
            self.bar.set_postfix(self.figures, refresh=False)

    def on_train_end(self, args, state, control, **kwargs) -> None:
        """Closes the bar."""
        if self.bar is not None:
            self.bar.close()
