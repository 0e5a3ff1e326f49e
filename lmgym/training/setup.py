"""Set-up that stages share: the run's folder and supervisor, the adapted model, our config for the Trainer."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from lmgym.config import FREE_SETTINGS, RunConfig, StageConfig
from lmgym.console import say
from lmgym.data.batching import UpdateSampler
from lmgym.data.rejections import Rejection, Tally, write_rejections
from lmgym.distributed.deepspeed_engine import engine_name
from lmgym.distributed.random_state import seeded
from lmgym.distributed.ranks import raise_on_all_ranks, rank, world_size
from lmgym.distributed.resharding import fit_to_ranks
from lmgym.distributed.weights import base_weights
from lmgym.models.classifiers import round_frozen_weights
from lmgym.models.fingerprint import fingerprint
from lmgym.models.forward.attention import checkpoint_contexts
from lmgym.models.lora import add_lora
from lmgym.models.parameters import count_parameters
from lmgym.models.saving import try_saving
from lmgym.runs.fields import flatten
from lmgym.runs.files import storage_error, storage_full
from lmgym.runs.paths import absolute
from lmgym.runs.resuming import describe, find_start
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.plan import TrainingPlan
from lmgym.training.preflight import checkpoint_bytes, idle_gpus, refuse_small_disk, stale_build_locks
from lmgym.training.reporting import show_notes

EVALUATIONS = 5
CHECKPOINTING = {"use_reentrant": False, "context_fn": checkpoint_contexts}


class RecordedData(Protocol):
    """The part of a dataset that a run's folder records."""

    @property
    def fingerprint(self) -> str:
        """Hash of all rows in their order."""

    @property
    def counts(self) -> dict[str, Any]:
        """Numbers of rows that are used, and that are not by reason."""

    @property
    def rejections(self) -> Sequence[Rejection]:
        """Rows that cannot be used."""

    @property
    def tally(self) -> Tally:
        """Their counts."""


@contextlib.contextmanager
def open_run(
    config: StageConfig, deepspeed: dict | None, accumulation: int, data: RecordedData, notes: Sequence[str] = ()
) -> Iterator[tuple[Run, Supervisor, Path | None]]:
    """The run with its folder locked, its supervisor, and the checkpoint to resume from, if any.

    `notes` on the plan were printed before; the run records them, unless it is resumed.
    """
    facts = _facts(config, deepspeed, accumulation, data)
    is_default = config.output == absolute(RunConfig().folder(config.name))
    start = find_start(config.output, facts, config.run.resume, config.run.reshard, is_default)
    run = raise_on_all_ranks(
        lambda: Run.start(
            start.folder,
            flatten(config) | {"output": str(start.folder)},
            config.optimizer.seed,
            config.run.tracking,
            data.fingerprint,
            is_main=rank() == 0,
            name=config.name,
            start=start,
            stage=type(config).__module__.partition(".")[0],
            sharing=config.sharing,
        )
    )
    with run, Supervisor(run, start, facts, config.run.save_total_limit, config.run.stall_timeout) as supervisor:
        run.update(data=data.counts)
        if start.resumed_at is None:
            run.note(*notes, data.tally.warning)
        if run.is_main:
            with run.writing("rejected.jsonl"):
                write_rejections(run.folder / "rejected.jsonl", data.rejections)
            show_notes([*start.notes, *run.notes, *stale_build_locks(), *idle_gpus()], run)
            say(f"results in {run.folder}")
        saved = start.checkpoint
        checkpoint = fit_to_ranks(saved.path, saved.facts["ranks"], facts["ranks"], deepspeed) if saved else None
        yield run, supervisor, checkpoint


def _facts(config: StageConfig, deepspeed: dict | None, accumulation: int, data: RecordedData) -> dict[str, Any]:
    """Facts that a checkpoint must share to be resumed: settings that change the training, the launch and the data, and
    the model below adapters, which the checkpoint lacks.
    """
    settings = {name: value for name, value in flatten(config).items() if name not in FREE_SETTINGS}
    base = fingerprint(str(settings["model"])) if settings["lora_rank"] and rank() == 0 else None
    engine = engine_name(deepspeed) if deepspeed else "without DeepSpeed"  # plain is DDP on one rank
    return describe(settings | {"deepspeed": deepspeed}, engine, accumulation, data.fingerprint, base)


def adapt(model, plan: TrainingPlan[Any], run: Run, supervisor: Supervisor | None = None):
    """The model frozen, checkpointed and with LoRA as the settings say; see `record_size` and `refuse_unsavable`."""
    settings = plan.model
    if settings.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    if settings.lora_rank:
        with seeded(plan.config.optimizer.seed):  # loading draws another number of random numbers under every engine
            model = add_lora(
                model,
                settings.lora_rank,
                settings.lora_alpha,
                plan.config.trainer.lora_dropout,
                settings.lora_target_modules,
                settings.modules_to_save,
            )
    record_size(plan.config, model, run, supervisor, keeps_best=plan.config.trainer.best_metric is not None)
    refuse_unsavable(model, plan.tokenizer, run)
    return model


def round_frozen(model, plan: TrainingPlan[Any]) -> None:
    """`round_frozen_weights` where the run's forward is under bf16's autocast; DeepSpeed rounds all weights itself.

    Call it once the forward is made, since that compares two ways to run the model.
    """
    if plan.model.precision == "bf16" and plan.deepspeed is None:
        round_frozen_weights(model)


def refuse_unsavable(model, tokenizer, run: Run) -> None:
    """Tries to save before step 1, see `try_saving`: a run must not fail at its first save. Collective.

    Raises InputError for a model that cannot be saved, and RunStopped if nothing can be written.
    """

    def work() -> list[str]:
        try:
            return try_saving(model, tokenizer, run.folder) if run.is_main else []
        except Exception as error:
            if not (cause := storage_error(error) or (str(error) if isinstance(error, OSError) else "")):
                raise
            raise storage_full(f"nothing can be saved in {run.folder} ({cause})", run.folder) from error

    show_notes(raise_on_all_ranks(work), run)


def record_size(
    config: StageConfig, model: torch.nn.Module, run: Run, supervisor: Supervisor | None, keeps_best: bool
) -> None:
    """Writes the numbers of weights to run.json.

    With a supervisor, raises InputError if the disk has no room for the checkpoints and models that are asked for.
    """
    trainable, parameters = count_parameters(model)
    run.update(parameters=parameters, trainable_parameters=trainable)
    if supervisor:
        checkpoints = 0 if config.run.save_updates < 0 else config.run.save_total_limit
        adapters = bool(base_weights(model))
        refuse_small_disk(run.folder, parameters, trainable, checkpoints, 2 if keeps_best else 1, adapters)
        supervisor.checkpoint_bytes = checkpoint_bytes(parameters, trainable, adapters)


def update_sampler(plan: TrainingPlan[Any]) -> UpdateSampler:
    """The batches of this rank."""
    o = plan.config.optimizer
    return UpdateSampler(
        plan.data.lengths,
        o.global_batch,
        plan.accumulation,
        world_size(),
        rank(),
        o.seed,
        tokens=o.tokens_per_micro_batch,
    )


def training_arguments(plan: TrainingPlan[Any], sampler: UpdateSampler):
    """Our config as the Trainer's arguments. They say when to save; lmgym/runs/checkpoints.py says how."""
    from transformers import TrainingArguments

    o, r, trainer, precision = plan.config.optimizer, plan.config.run, plan.config.trainer, plan.model.precision
    per_epoch = -(-len(sampler) // plan.accumulation)
    updates = o.max_updates if o.max_updates > 0 else max(1, round(per_epoch * o.epochs))
    on_cpu = not torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=plan.config.output,
        per_device_train_batch_size=o.smallest_micro_batch,
        gradient_accumulation_steps=plan.accumulation,
        num_train_epochs=o.epochs,
        max_steps=int(o.max_updates),  # not an UpTo, which DeepSpeed would write into its checkpoints
        learning_rate=o.learning_rate,
        weight_decay=o.weight_decay,
        adam_beta2=o.adam_beta2,
        max_grad_norm=o.max_grad_norm,
        warmup_steps=o.warmup,
        lr_scheduler_type=o.schedule,
        optim="adamw_torch_fused",
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        seed=o.seed,
        data_seed=o.seed,
        eval_strategy="steps",
        eval_steps=r.eval_updates or max(1, -(-updates // EVALUATIONS)),
        logging_steps=trainer.log_updates,
        logging_nan_inf_filter=False,  # a loss that is not finite is shown, not averaged away
        save_strategy="no" if r.save_updates < 0 else "steps",
        save_steps=max(1, r.save_updates or -(-updates // EVALUATIONS)),
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=trainer.data_workers,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if on_cpu and world_size() > 1 else None,
        use_cpu=on_cpu,
        deepspeed=copy.deepcopy(plan.deepspeed),  # the Trainer fills it in place
    )
    # without a launcher the Trainer would take all GPUs there are, by DataParallel, which cuts packed rows anywhere
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments
