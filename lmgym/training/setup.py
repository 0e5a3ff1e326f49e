"""What every stage's `train` does alike: checks, the run's folder and supervisor, our config for the Trainer."""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from lmgym.config import ModelConfig, StageConfig, TrainerConfig
from lmgym.data.batching import accumulation_steps
from lmgym.data.rejections import Rejection, write_rejections
from lmgym.distributed.deepspeed_config import read_config, refuse_disagreement, run_values
from lmgym.distributed.deepspeed_engine import engine_name
from lmgym.distributed.ranks import raise_on_all_ranks, rank, start_distributed, world_size
from lmgym.distributed.resharding import fit_to_ranks
from lmgym.errors import InputError
from lmgym.models.forward.attention import again_in_backward
from lmgym.models.loading import context_length, load_config
from lmgym.models.lora import add_lora
from lmgym.models.parameters import count_parameters
from lmgym.models.quantized import refuse_unfit_quantization
from lmgym.random_state import seeded
from lmgym.runs.flags import flatten
from lmgym.runs.resuming import describe, find_start
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.preflight import checkpoint_bytes, idle_gpus, refuse_small_disk, stale_build_locks
from lmgym.training.reporting import show_notes

EVALUATIONS = 5
CHECKPOINTING = {"use_reentrant": False, "context_fn": again_in_backward}
FEWEST_TOKENS = 8  # that can hold a conversation
# what may differ between a run and its resumption: nothing of the training depends on it
FREE_SETTINGS = {
    *("output", "tracking", "memory_gb", "data_workers", "dry_run"),
    *("save_total_limit", "resume", "reshard", "stall_timeout"),
}


def join_ranks(config: StageConfig, model: ModelConfig, max_length: int) -> tuple[dict | None, int]:
    """(DeepSpeed's config, micro-batches a rank and update), once all ranks are there.

    Raises InputError before anything is loaded for what cannot be; the ranks come before TrainingArguments and before
    the model: ZeRO-3 shards at load.
    """
    deepspeed = read_config(config.run.deepspeed) if config.run.deepspeed else None
    accumulation = accumulation_steps(config.optimizer.global_batch, config.optimizer.micro_batch, world_size())
    _refuse_impossible(model, max_length)
    refuse_unfit_quantization(model, deepspeed)
    if deepspeed is not None:
        o, ranks = config.optimizer, world_size()
        decided = run_values(o.micro_batch, accumulation, ranks, model.precision, o.max_grad_norm)
        refuse_disagreement(deepspeed, decided)
    start_distributed(use_deepspeed=deepspeed is not None)
    return deepspeed, accumulation


def refuse_fp16_without_gpu(model: ModelConfig) -> None:
    """Raises InputError for a precision that a CPU does not have."""
    if model.precision == "fp16" and not torch.cuda.is_available():
        raise InputError("--precision fp16 needs a GPU and none was found; use bf16 or fp32")


def _refuse_impossible(model: ModelConfig, max_length: int) -> None:
    refuse_fp16_without_gpu(model)
    if max_length < FEWEST_TOKENS:
        raise InputError(f"--max_length {max_length} holds no conversation; needed: at least {FEWEST_TOKENS} tokens")


def within_context(max_length: int, model: ModelConfig) -> int:
    """The smaller of `--max_length` and what the model reads; a line tells, on rank 0, where that is less.

    Raises InputError where the model reads too few tokens for any conversation.
    """
    limit = context_length(load_config(model.model, model.trust_remote_code))
    if limit < FEWEST_TOKENS:
        raise InputError(
            f"{model.model} reads {limit} tokens, its context, which hold no conversation; needed: a model that "
            f"reads at least {FEWEST_TOKENS}"
        )
    if max_length > limit and rank() == 0:
        what = f"--max_length {max_length} exceeds what {model.model} reads"
        show_notes([f"{what}: rows are truncated to its {limit} tokens"])
    return min(max_length, limit)


class TrainerStageConfig(StageConfig, Protocol):
    """The config of a stage that runs Hugging Face's Trainer."""

    @property
    def trainer(self) -> TrainerConfig: ...


class Rows(Protocol):
    """What a run's folder records of its data."""

    @property
    def fingerprint(self) -> str:
        """Of all rows in their order."""
        ...

    @property
    def counts(self) -> dict[str, Any]:
        """How many are used, and how many not, by reason."""
        ...

    @property
    def rejections(self) -> Sequence[Rejection]:
        """Rows that cannot be used."""
        ...


@contextlib.contextmanager
def kept_run(
    config: StageConfig, deepspeed: dict | None, accumulation: int, data: Rows
) -> Iterator[tuple[Run, Supervisor, Path | None]]:
    """The run's folder, locked; its supervisor; and the checkpoint that a former launch left, to go on from."""
    facts = _facts(config, deepspeed, accumulation, data)
    start = find_start(config.output, facts, config.run.resume, config.run.reshard)
    run = raise_on_all_ranks(
        lambda: Run.start(
            config.output,
            flatten(config),
            config.optimizer.seed,
            config.run.tracking,
            data.fingerprint,
            is_main=rank() == 0,
            name=config.name,
            start=start,
        )
    )
    with run, Supervisor(run, start, facts, config.run.save_total_limit, config.run.stall_timeout) as supervisor:
        run.update(data=data.counts)
        if run.is_main:
            with run.writing("rejected.jsonl"):
                write_rejections(run.folder / "rejected.jsonl", data.rejections)
            show_notes([*start.notes, *run.notes, *stale_build_locks(), *idle_gpus()])
        saved = start.checkpoint
        checkpoint = fit_to_ranks(saved.path, saved.facts["ranks"], facts["ranks"], deepspeed) if saved else None
        yield run, supervisor, checkpoint


def _facts(config: StageConfig, deepspeed: dict | None, accumulation: int, data: Rows) -> dict[str, Any]:
    """What a checkpoint must agree on: every setting that changes the training, the launch and the data."""
    settings = {name: value for name, value in flatten(config).items() if name not in FREE_SETTINGS}
    engine = engine_name(deepspeed) if deepspeed else "without DeepSpeed"  # plain is DDP on one rank
    return describe(settings | {"deepspeed": deepspeed}, engine, accumulation, data.fingerprint)


def adapt(model, settings: ModelConfig, run: Run, seed: int, lora_dropout: float = 0.0):
    """The model with what the settings freeze, recompute or add to it; its size goes into run.json."""
    if settings.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    if settings.lora_rank:
        given = (lora_dropout, settings.lora_target_modules, settings.modules_to_save)
        with seeded(seed):  # loading draws another number of random numbers under every engine
            model = add_lora(model, settings.lora_rank, settings.lora_alpha, *given)
    trainable, parameters = count_parameters(model)
    run.update(parameters=parameters, trainable_parameters=trainable)
    return model


def room_for_checkpoints(config: StageConfig, model: torch.nn.Module, run: Run) -> int:
    """Bytes of a checkpoint. Raises InputError where the disk has no room for those that are asked for."""
    trainable, parameters = count_parameters(model)
    kept = 0 if config.run.save_updates < 0 else config.run.save_total_limit
    refuse_small_disk(run.folder, parameters, trainable, kept)
    return checkpoint_bytes(parameters, trainable)


def training_arguments(
    config: TrainerStageConfig, precision: str, deepspeed: dict | None, accumulation: int, updates_per_epoch: int
):
    """Our config in the Trainer's words. It says when to save; how is lmgym/runs/checkpoints.py's."""
    from transformers import TrainingArguments

    o, r = config.optimizer, config.run
    updates = o.max_updates if o.max_updates > 0 else max(1, round(updates_per_epoch * o.epochs))
    on_cpu = not torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=config.output,
        per_device_train_batch_size=o.micro_batch,
        gradient_accumulation_steps=accumulation,
        num_train_epochs=o.epochs,
        max_steps=o.max_updates,
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
        logging_steps=config.trainer.log_updates,
        logging_nan_inf_filter=False,  # a loss that is not finite is shown, not averaged away
        save_strategy="no" if r.save_updates < 0 else "steps",
        save_steps=max(1, r.save_updates or -(-updates // EVALUATIONS)),
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=config.trainer.data_workers,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if on_cpu and world_size() > 1 else None,
        use_cpu=on_cpu,
        deepspeed=copy.deepcopy(deepspeed),  # the Trainer fills it in place
    )
    # without a launcher the Trainer would take all GPUs there are, by DataParallel, which cuts packed rows anywhere
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments
