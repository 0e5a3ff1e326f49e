"""Hugging Face's Trainer, which owns the loop, with our batches, normalisation, probes and checkpoints."""

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import SchedulerType

from lmgym.data.batching import MicroBatches, UpdateLoader, UpdateSampler
from lmgym.distributed.deepspeed_engine import end_prefetch, skipped_steps, whole_weights
from lmgym.distributed.ranks import first_non_finite, sum_over_ranks, world_size
from lmgym.distributed.resharding import repair_universal_load
from lmgym.distributed.weights import accepting_checkpoints
from lmgym.errors import InputError
from lmgym.runs.checkpoint_files import loading
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.best import BestModel
from lmgym.training.callbacks import LogAtEvaluations, ShowStatus, StopWhenAsked
from lmgym.training.metrics import TrainingMetrics
from lmgym.training.objectives import Batch, BeforeUpdate, Kept, Objective, out_of_memory
from lmgym.training.probes import Probe, Report, full_name, join_reports
from lmgym.training.schedules import learning_rate
from lmgym.training.trainer_state import read_model, read_sums, refuse_unreadable_state, restore_random, write_trainer

KEPT = ("_evaluated_at", "before", "losses")  # of the trainer's attributes, in checkpoints


@final
class ObjectiveTrainer(Trainer):
    """Trains a model on an objective, in every stage except RL.

    The loss of an update is the mean over its count (pairs, present labels, output tokens) on all ranks and
    micro-batches: each contributes its sum times the ranks (data parallel gradients are averaged) over that count.
    With a supervisor it saves checkpoints, stops when asked to, and stops before a loss or gradient that is not finite
    changes a weight.
    `before_update` is called with the micro-batches of each update before any of them runs, and may add to them.
    `before` has the probes' metrics before step 1 by full name; `losses` the held-out loss by number of updates; `best`
    keeps the best model. Checkpoints have the state of `kept`, by name, too.
    """

    # compute_loss divides by the count of the whole update: Trainer must not divide by the accumulation steps again
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: torch.nn.Module,
        args: TrainingArguments,
        examples: Sequence,
        objective: Objective,
        sampler: UpdateSampler,
        probes: Mapping[str, Probe],
        run: Run,
        callbacks: Sequence[TrainerCallback] = (),
        supervisor: Supervisor | None = None,
        best: BestModel | None = None,
        before_update: BeforeUpdate | None = None,
        kept: Mapping[str, Kept] | None = None,
    ) -> None:
        self.objective: Objective = objective
        self.best, self.before_update, self.kept = best or BestModel(), before_update, kept or {}
        self.sampler, self.probes, self.run, self.supervisor = sampler, probes, run, supervisor
        self.slots = MicroBatches(examples, objective.collate, args.seed)
        self.metrics = TrainingMetrics()
        self._losses: list[tuple[torch.Tensor, list[str]]] = []  # of this update's micro-batches, with their rows
        self._micro_batches = 0  # of this update
        self.stopping, self.status = False, ShowStatus()
        self._evaluated_at = self._measured_at = -1  # after which update, in the whole run and in this process
        self.before: dict[str, float] = {}
        self.losses: dict[int, float] = {}
        model_config: Any = getattr(model, "config", None)
        use_cache = getattr(model_config, "use_cache", None)
        super().__init__(
            model=model,
            args=args,
            train_dataset=self.slots,
            eval_dataset=self.slots,  # required by Trainer; the probes hold the rows
            data_collator=_as_is,  # type: ignore[arg-type]
            callbacks=[self.status, *callbacks, LogAtEvaluations(), StopWhenAsked(lambda: self.stopping)],
        )
        if use_cache is not None:  # Trainer turns it off, also in what is saved; no forward of ours uses it
            model_config.use_cache = use_cache
        elif hasattr(model_config, "use_cache"):
            del model_config.use_cache
        for unwanted in (ProgressCallback, PrinterCallback):
            self.remove_callback(unwanted)

    def get_train_dataloader(self) -> DataLoader:
        """The sampler shards itself: a loader prepared by accelerate would do so a second time."""
        return UpdateLoader(
            self.slots,
            batch_sampler=self.sampler,
            collate_fn=self.data_collator,
            generator=torch.Generator(),  # a loader draws from the common one as it starts: a resumed run would differ
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.device.type == "cuda",
            persistent_workers=self.args.dataloader_num_workers > 0,
        )

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """Every stage's schedule: that of transformers gives the first update of a warm-up a rate of 0."""
        if self.lr_scheduler is None:
            kind = SchedulerType(self.args.lr_scheduler_type).value
            share_of_peak = learning_rate(1.0, kind, self.args.warmup_steps, num_training_steps)
            optimizer = self.optimizer if optimizer is None else optimizer
            assert optimizer is not None
            self.lr_scheduler = LambdaLR(optimizer, share_of_peak)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: torch.device) -> int:
        """The update's count over all ranks; the same reduction tells whether a rank was asked to stop."""
        batches = [batch for batch in batch_samples if batch]
        if self.before_update:
            self.before_update(self.model_wrapped, batches, device)
        asked = self.supervisor is not None and self.supervisor.stop_requested
        sums = torch.tensor([float(sum(batch["count"] for batch in batches)), float(asked)], device=device)
        count, asking = sum_over_ranks(sums).tolist()
        self.stopping, self._losses, self._micro_batches = asking > 0, [], len(batches)
        return int(count)

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        """Unchanged: `compute_loss` moves them to the device without blocking, as Trainer would not."""
        return inputs

    def training_step(self, model, inputs: Batch, num_items_in_batch=None) -> torch.Tensor:
        """Forward and backward; under DeepSpeed the update too, which is skipped if a gradient is not finite.

        Nothing runs for an empty micro-batch, which is never an update's last.
        """
        if not inputs:
            return torch.zeros((), device=self.args.device)
        if self.supervisor:
            self.supervisor.heartbeat(f"update {self.state.global_step + 1}")
        skipped = skipped_steps(self.model_wrapped)
        try:
            loss = super().training_step(model, inputs, num_items_in_batch)
        except torch.OutOfMemoryError as error:
            refusal = InputError(out_of_memory(inputs))
            refusal.alone = True
            raise refusal from error
        if skipped_steps(self.model_wrapped) > skipped and not self.args.fp16:  # fp16 scales its loss down
            self._stop_non_finite("a gradient that is not finite")
        return loss

    def compute_loss(self, model, inputs: Batch, return_outputs: bool = False, num_items_in_batch=None):
        """This micro-batch's share of the update's loss. At the last one the run stops if any loss of the update is not
        finite on any rank: before its backward, which under DeepSpeed makes the update.
        """
        device = self.args.device
        batch: Batch = {
            k: v.to(device, non_blocking=True) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()
        }
        outputs = model(**{name: _to_device(value, device) for name, value in inputs["inputs"].items()})
        total, _ = self.objective.loss(outputs, batch)
        loss = total * world_size() / num_items_in_batch
        self._losses.append((loss.detach(), batch["origins"]))
        if len(self._losses) == self._micro_batches:
            self._refuse_non_finite_losses()
        sums = {**self.objective.tallies(outputs.detach(), batch), "loss": loss.detach() / world_size()}
        self.metrics.add(sums, batch["items"], batch["tokens"])
        return (loss, outputs) if return_outputs else loss

    def _get_grad_norm(self, model, grad_norm=None):
        """The norm before the update, which DeepSpeed owns if it is used. Stops the run if it is not finite."""
        norm = super()._get_grad_norm(model, grad_norm)
        scaled = getattr(self.accelerator, "scaler", None) is not None
        if not self.is_deepspeed_enabled and not scaled and not math.isfinite(float(norm)):
            self._stop_non_finite(f"a gradient of norm {float(norm)}")
        return norm

    def _refuse_non_finite_losses(self) -> None:
        """Stops the run if a loss of this update is not finite on any rank. Collective."""
        number = first_non_finite([loss for loss, _ in self._losses])
        if number is not None:
            loss, rows = self._losses[number]
            self._stop_non_finite("" if math.isfinite(loss.item()) else f"a loss of {loss.item()}", rows)

    def _stop_non_finite(self, what: str, rows: list[str] | None = None) -> None:
        """Stops the run and names the rows; by default all of the update."""
        if self.supervisor:
            rows = [row for _, batch_rows in self._losses for row in batch_rows] if rows is None else rows
            self.supervisor.stop_non_finite(self.state.global_step, what, rows)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds the training metrics since the last line, summed over ranks, and passes all to the run."""
        if "loss" in logs:
            logs = {f"train/{name}": value for name, value in logs.items()} | self.metrics.line(self.state.global_step)
        elif "train_loss" in logs:  # Trainer's own mean begins at the resume
            if self.stopping:
                return  # the run is not over
            logs = {"run/seconds": logs["train_runtime"], **self.metrics.mean_loss()}
        super().log(logs, start_time)
        self.run.log(self.state.global_step, {k: v for k, v in logs.items() if isinstance(v, int | float)})

    def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Runs every probe, on all ranks, and logs its metrics."""
        began = time.perf_counter()
        with self.metrics.pause():
            metrics = self._measure(metric_key_prefix)
        self._evaluated_at = self.state.global_step
        self.log({**metrics, "time/evaluate": time.perf_counter() - began})
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        self.best.after_evaluation(self)
        self.run.write_report()
        return metrics

    def finish(self) -> None:
        """Evaluates after the last update, if that was not done yet, and saves the last model where it is asked for."""
        if self._evaluated_at != self.state.global_step:
            self.evaluate()
        elif self._measured_at != self.state.global_step:  # resumed after it: it is logged, but reports are not kept
            self._measure()
        self.best.finish(self)

    def _measure(self, prefix: str = "eval") -> dict[str, float]:
        """Every probe's metrics of the model as it is now; keeps the first ones and each held-out loss."""
        step, model = self.state.global_step, self.model_wrapped
        self._measured_at, was_training = step, model.training
        model.eval()
        metrics: dict[str, float] = {}
        for name, probe in self.probes.items():
            self.status.doing(f"evaluating {name}".rstrip())
            if self.supervisor:
                self.supervisor.heartbeat(f"evaluation {name or 'of held-out examples'} after update {step}")
            measured = probe.measure(model, self.args.device)
            metrics |= {f"{prefix}/{full_name(name, metric)}": value for metric, value in measured.items()}
            end_prefetch(model)  # the next probe, or the saving, gathers the weights
        model.train(was_training)
        if step == 0:
            self.before = self.report().metrics
        held_out = self.probes.get("")
        if held_out is not None and held_out.loss in held_out.report.metrics:
            self.losses[step] = held_out.report.metrics[held_out.loss]
        self.status.watch(self.losses)
        return metrics

    def report(self) -> Report:
        """All probes' last figures by their full names."""
        return join_reports({name: probe.report for name, probe in self.probes.items()})

    @property
    def module(self) -> torch.nn.Module:
        """The model without wrappers."""
        return self.accelerator.unwrap_model(self.model_wrapped)

    def whole_state(self) -> dict[str, torch.Tensor]:
        """The whole weights on rank 0, in fp32 if they were trained in it. Collective."""
        state = whole_weights(self.module) if self.is_deepspeed_enabled else self.module.state_dict()
        return {name.removeprefix("model."): value for name, value in state.items()}

    # --- checkpoints: Trainer decides when, lmgym/runs/checkpoints.py how

    def _save_checkpoint(self, model, trial) -> None:
        if self.supervisor:
            sums = {**self.metrics.state(), **self.best.state(), **{name: getattr(self, name) for name in KEPT}}
            sums |= {name: one.state_dict() for name, one in self.kept.items()}
            self.status.doing("saving a checkpoint")
            with self.metrics.pause():
                self.supervisor.save(
                    self.state.global_step, lambda folder: write_trainer(self, folder, sums), self.module
                )

    def train_from(self, checkpoint: Path | None) -> None:
        """Trains from the beginning or from a checkpoint, which may be of the last update.

        Without one the probes measure the model before step 1; a checkpoint has these metrics.
        Raises RunStopped, once a checkpoint is saved, if a rank was asked to stop.
        """
        self.args.eval_on_start = checkpoint is None
        if checkpoint:
            refuse_unreadable_state(checkpoint)
            sums = read_sums(checkpoint, world_size())
            self.metrics.load(sums)
            self.best.load(sums)
            for name in KEPT:
                setattr(self, name, sums[name])
            for name, one in self.kept.items():
                one.load_state_dict(sums.get(name, {}))
        assert self.model is not None
        # for DeepSpeed's load, which Trainer begins
        with accepting_checkpoints(self.model) if checkpoint else contextlib.nullcontext():
            self.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if self.stopping and self.supervisor:
            self.supervisor.stop_interrupted(self.state.global_step)

    def _run_epoch(self, **where) -> None:  # type: ignore[override]
        # after the last update, also of a run that stopped early, Trainer would make one more
        if self.state.global_step < self.state.max_steps and not self.best.has_stopped:
            super()._run_epoch(**where)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Called after DeepSpeed has loaded its part."""
        with loading(Path(checkpoint)) if checkpoint else contextlib.nullcontext():
            super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint and self.is_deepspeed_enabled:
            repair_universal_load(self.model_wrapped, Path(checkpoint))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        read_model(self, Path(resume_from_checkpoint))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            restore_random(Path(checkpoint), world_size(), self.args.seed, self.state.global_step)


def _to_device(value, device: torch.device):
    """A tensor, or a packed batch of tensors, on a device."""
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value.to(device)


def _as_is(batch: Batch) -> Batch:
    """MicroBatches hand out whole batches."""
    return batch
