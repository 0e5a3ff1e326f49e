"""Hugging Face's Trainer with our batches, our normalisation and our probes. It owns the loop."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import final

import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from lmgym.batching import Slots, UpdateSampler
from lmgym.engine import rank, sum_over_ranks, whole_weights, world_size
from lmgym.models import ScoringModel
from lmgym.run import Run
from reward_models.objectives import Batch, Objective
from reward_models.probes import Probe


class UpdateLoader(DataLoader):
    """Batches of an UpdateSampler. Trainer tells the epoch to a loader only, and only where it has `set_epoch`."""

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on to the sampler."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]


@final
class RewardTrainer(Trainer):
    """Trains a ScoringModel on an objective.

    The loss of an update is the mean over its count (pairs, or present labels) on all ranks and micro-batches: each
    micro-batch contributes its sum times the number of ranks (data parallel gradients are averaged) over that count.
    """

    # compute_loss divides by the count of the whole update: Trainer must not divide by the accumulation steps again
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: ScoringModel,
        args: TrainingArguments,
        examples: Sequence,
        objective: Objective,
        sampler: UpdateSampler,
        probes: Mapping[str, Probe],
        run: Run,
        callbacks: Sequence[TrainerCallback] = (),
    ) -> None:
        self.objective: Objective = objective
        self.sampler, self.slots, self.probes, self.run = sampler, Slots(examples), probes, run
        self._tallies: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
        self._mark = time.perf_counter()
        self.evaluated_at = -1  # the update after which the probes were last asked
        super().__init__(
            model=model,
            args=args,
            train_dataset=self.slots,
            eval_dataset=self.slots,  # Trainer wants one; the probes hold what is evaluated
            data_collator=objective.collate,
            callbacks=list(callbacks),
        )
        for unwanted in (ProgressCallback, PrinterCallback):
            self.remove_callback(unwanted)

    def get_train_dataloader(self) -> DataLoader:
        """The sampler shards itself: a loader prepared by accelerate would do so a second time."""
        return UpdateLoader(
            self.slots,
            batch_sampler=self.sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.device.type == "cuda",
            persistent_workers=self.args.dataloader_num_workers > 0,
        )

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: torch.device) -> int:
        """What the update's loss is the mean of, over its micro-batches and all ranks."""
        count = torch.tensor(float(sum(batch["count"] for batch in batch_samples)), device=device)
        return int(sum_over_ranks(count).item())

    def compute_loss(self, model, inputs: Batch, return_outputs: bool = False, num_items_in_batch=None):
        """This micro-batch's share of the update's loss."""
        device = self.args.device
        batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
        scores = model(**{name: value.to(device) for name, value in inputs["inputs"].items()})
        total, _ = self.objective.loss(scores, batch)
        self._tally(scores.detach(), batch)
        loss = total * world_size() / num_items_in_batch
        return (loss, scores) if return_outputs else loss

    def _tally(self, scores: torch.Tensor, batch: Batch) -> None:
        sums = {**self.objective.tallies(scores, batch), "items": batch["items"], "tokens": batch["tokens"]}
        for name, value in sums.items():
            self._tallies[name] = self._tallies[name].to(scores.device) + value

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the training metrics since the last line, summed over ranks, and hands all to the run."""
        if "loss" in logs:
            logs = {**{f"train/{name}": value for name, value in logs.items()}, **self._training_metrics()}
        elif "train_loss" in logs:
            logs = {"run/seconds": logs["train_runtime"], "run/loss": logs["train_loss"]}
        super().log(logs, start_time)
        self.run.log(self.state.global_step, {k: v for k, v in logs.items() if isinstance(v, int | float)})

    def _training_metrics(self) -> dict[str, float]:
        names = sorted(self._tallies)
        sums = dict(
            zip(names, sum_over_ranks(torch.stack([self._tallies[n].double() for n in names])).tolist(), strict=True)
        )
        self._tallies.clear()
        now = time.perf_counter()
        seconds, self._mark = now - self._mark, now
        items, tokens = sums.pop("items"), sums.pop("tokens")
        rates = {"train/items_per_second": items / seconds, "train/tokens_per_second": tokens / seconds}
        return {**{f"train/{name}": value / max(items, 1) for name, value in sums.items()}, **rates}

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Every probe, on all ranks."""
        began = time.perf_counter()
        metrics = self.measure(metric_key_prefix)
        self.evaluated_at = self.state.global_step
        self._mark += time.perf_counter() - began  # an evaluation is no training time
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def measure(self, prefix: str = "eval") -> dict[str, float]:
        """What the probes say of the model as it is now."""
        model = self.model_wrapped
        was_training = model.training
        model.eval()
        metrics = {
            f"{prefix}/{name}": value
            for probe_name, probe in self.probes.items()
            for name, value in _named(probe_name, probe.measure(model, self.args.device)).items()
        }
        model.train(was_training)
        return metrics

    def whole_state(self) -> dict[str, torch.Tensor]:
        """The classifier's weights on rank 0, whole, in fp32 where they were trained so; gathered on all ranks."""
        module = self.accelerator.unwrap_model(self.model_wrapped)
        state = whole_weights(module) if self.is_deepspeed_enabled else module.state_dict()
        return {name.removeprefix("model."): value for name, value in state.items()}


def _named(probe: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{probe}/{name}" if probe else name: value for name, value in metrics.items()}


class Progress(TrainerCallback):
    """A progress bar on the main rank with the last loss and accuracy."""

    SHOWN = MappingProxyType({"train/loss": "loss", "train/accuracy": "accuracy", "eval/accuracy": "eval accuracy"})

    def __init__(self) -> None:
        self.bar: tqdm | None = None
        self.figures: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs) -> None:
        """Opens the bar."""
        if rank() == 0:
            self.bar = tqdm(total=state.max_steps, unit="update", dynamic_ncols=True, mininterval=0.5, desc="training")

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
