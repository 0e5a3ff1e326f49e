"""From a config and a task to a scorer, in one straight line of numbered steps."""

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch

from lmgym.batching import UpdateSampler, accumulation_steps
from lmgym.engine import engine_name, rank, read_config, start_distributed, stop_distributed, world_size, zero_stage
from lmgym.errors import InputError
from lmgym.keeping import Keeper
from lmgym.memory import device_memory_gb, estimate, refuse_excess
from lmgym.models import (
    ScoringModel,
    add_lora,
    count_parameters,
    load_classifier,
    load_config,
    load_tokenizer,
)
from lmgym.override import flatten
from lmgym.preflight import checkpoint_bytes, refuse_small_disk, stale_build_locks
from lmgym.resharding import fit_to_ranks
from lmgym.resuming import describe, find_start
from lmgym.run import Run
from lmgym.tracking import adopt_original_token_names
from reward_models.config import RewardConfig
from reward_models.data import write_rejections
from reward_models.evaluations import EvaluationSet, find_file, read_evaluation
from reward_models.pairwise import PairTask
from reward_models.report import save_results, show_absent, show_plan, show_results, show_rows, show_start
from reward_models.tasks import Task, TaskData

EVALUATIONS = 5
# what may differ between a run and its resumption: nothing of the training depends on it
FREE_SETTINGS = {
    *("output", "tracking", "memory_gb", "data_workers", "dry_run"),
    *("save_total_limit", "resume", "reshard", "stall_timeout"),
}


def train_pairwise(config: RewardConfig) -> None:
    """`train` on pairs."""
    train(config, PairTask())


def train(config: RewardConfig, task: Task) -> None:
    """Trains a scorer, evaluates it and saves it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()

    # 1. what can be refused before anything is loaded
    deepspeed = read_config(config.run.deepspeed) if config.run.deepspeed else None
    accumulation = accumulation_steps(config.optimizer.global_batch, config.optimizer.micro_batch, world_size())
    _refuse_impossible(config)

    # 2. the ranks, before TrainingArguments and before the model: ZeRO-3 shards at load
    start_distributed(use_deepspeed=deepspeed is not None)

    # 3. rows: read, validated, split, labelled, tokenised; and the sets that the scorer is judged on besides
    tokenizer = load_tokenizer(config.scorer.model, config.scorer.trust_remote_code)
    evaluations = _read_evaluations(config, task, tokenizer)  # first: it is small, and may be refused
    data = task.prepare(config, tokenizer)
    _refuse_excess_memory(config, deepspeed, data.replies)
    if rank() == 0:
        show_plan(config, data, accumulation, deepspeed)
    if config.run.dry_run:
        if rank() == 0:
            show_rows(data.train[:3], task, tokenizer)
        stop_distributed()
        return

    # 4. the folder, locked, and what a former launch of this command left in it
    facts = _facts(config, deepspeed, accumulation, data)
    start = find_start(config.output, facts, config.run.resume, config.run.reshard)
    run = Run.start(
        config.output,
        flatten(config),
        config.optimizer.seed,
        config.run.tracking,
        data.fingerprint,
        is_main=rank() == 0,
        name=config.name,
        start=start,
    )
    with run, Keeper(run, start, facts, config.run.save_total_limit, config.run.stall_timeout) as keeper:
        run.update(data=data.counts)
        if run.is_main:
            write_rejections(run.folder / "rejected.jsonl", data.rejections)
            show_start([*start.notes, *stale_build_locks()])

        # 5. the model, its trainer, and the run
        checkpoint = start.checkpoint and fit_to_ranks(start.checkpoint, facts, deepspeed)
        trainer = _make_trainer(config, task, deepspeed, accumulation, tokenizer, data, evaluations, run, keeper)
        began = time.perf_counter()
        trainer.train_from(checkpoint)
        if trainer.leaving:
            keeper.leave(trainer.state.global_step)

        # 6. judged after the last update, saved as an ordinary folder
        trainer.judge()
        keeper.beat("saving the model")
        save_results(config, task, trainer, tokenizer, run)
        if run.is_main:
            show_results(config, data, trainer.probes, time.perf_counter() - began, run.folder)
    stop_distributed()


def _facts(config: RewardConfig, deepspeed: dict | None, accumulation: int, data: TaskData) -> dict[str, Any]:
    """What a checkpoint must agree on: every setting that changes the training, the launch and the data."""
    settings = {name: value for name, value in flatten(config).items() if name not in FREE_SETTINGS}
    engine = engine_name(deepspeed) if deepspeed else "without DeepSpeed"  # plain is DDP on one rank
    return describe(settings | {"deepspeed": deepspeed}, engine, accumulation, data.fingerprint)


def _read_evaluations(config: RewardConfig, task: Task, tokenizer) -> list[EvaluationSet]:
    """The task's evaluations that `--probe_data` has; of one that it lacks one line is said."""
    settings = config.data
    if settings.probe_data is None:
        return []
    found = []
    for evaluation in task.evaluations:
        path = find_file(settings.probe_data, evaluation.file)
        if path is not None:
            found.append(read_evaluation(path, evaluation, settings.probe_rows, tokenizer, settings.max_length))
        elif rank() == 0:
            show_absent(settings.probe_data, evaluation)
    return found


def _refuse_impossible(config: RewardConfig) -> None:
    if config.scorer.precision == "fp16" and not torch.cuda.is_available():
        raise InputError("--precision fp16 needs a GPU and none was found; use bf16 or fp32")
    if config.data.max_length < 8:
        raise InputError(f"--max_length {config.data.max_length} holds no conversation; needed: at least 8 tokens")
    limit = getattr(load_config(config.scorer.model, config.scorer.trust_remote_code), "max_position_embeddings", None)
    if limit and config.data.max_length > limit:
        raise InputError(
            f"--max_length {config.data.max_length} exceeds what {config.scorer.model} reads: {limit} tokens"
        )


def _refuse_excess_memory(config: RewardConfig, deepspeed: dict | None, replies: int) -> None:
    scorer, micro_batch = config.scorer, config.optimizer.micro_batch
    demand = estimate(
        load_config(scorer.model, scorer.trust_remote_code),
        replies * micro_batch * config.data.max_length,
        scorer.precision,
        deepspeed,
        world_size(),
        scorer.gradient_checkpointing,
        scorer.lora_rank,
    )
    refuse_excess(demand, config.run.memory_gb or device_memory_gb(), zero_stage(deepspeed), micro_batch)


def _make_trainer(
    config: RewardConfig,
    task: Task,
    deepspeed: dict | None,
    accumulation: int,
    tokenizer,
    data: TaskData,
    evaluations: Sequence[EvaluationSet],
    run: Run,
    keeper: Keeper | None = None,
):
    # the Trainer takes seconds to import: what is wrong with flags and data is said before
    from reward_models.probes import Probe, TranscriptProbe
    from reward_models.trainers import Progress, RewardTrainer

    sampler = UpdateSampler(
        data.lengths, config.optimizer.global_batch, accumulation, world_size(), rank(), config.optimizer.seed
    )
    arguments = training_arguments(config, deepspeed, accumulation, -(-len(sampler) // accumulation))
    scoring = _make_model(config, task, tokenizer, run)
    if keeper:
        keeper.checkpoint_bytes = _refuse_small_disk(config, scoring, run)
    pad = tokenizer.pad_token_id
    batch_tokens = data.replies * config.optimizer.micro_batch * config.data.max_length
    probes: dict[str, Probe] = {"": task.probe(data, scoring, pad, batch_tokens)}
    for rows in evaluations:
        probes[rows.evaluation.name] = TranscriptProbe(rows, scoring, pad, batch_tokens, task.reduce)
    return RewardTrainer(
        scoring,
        arguments,
        data.train,
        task.objective(config, scoring, pad),
        sampler,
        probes,
        run,
        [Progress()],
        keeper,
    )


def _refuse_small_disk(config: RewardConfig, scoring: ScoringModel, run: Run) -> int:
    """Bytes of a checkpoint. Raises InputError where the disk has no room for those that are asked for."""
    trainable, parameters = count_parameters(scoring)
    kept = 0 if config.run.save_updates < 0 else config.run.save_total_limit
    refuse_small_disk(run.folder, parameters, trainable, kept)
    return checkpoint_bytes(parameters, trainable)


def _make_model(config: RewardConfig, task: Task, tokenizer, run: Run) -> ScoringModel:
    classifier, new_head = load_classifier(
        config.scorer.model,
        tokenizer,
        num_labels=task.outputs,
        seed=config.optimizer.seed,
        trust_remote_code=config.scorer.trust_remote_code,
    )
    if config.scorer.freeze_embeddings:
        classifier.get_input_embeddings().requires_grad_(False)
    if config.scorer.gradient_checkpointing:
        classifier.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.scorer.lora_rank:
        classifier = add_lora(classifier, config.scorer.lora_rank, config.scorer.lora_alpha, config.scorer.lora_dropout)
    trainable, parameters = count_parameters(classifier)
    run.update(parameters=parameters, trainable_parameters=trainable, new_head=new_head)
    return ScoringModel(classifier, config.scorer.packed)


def training_arguments(config: RewardConfig, deepspeed: dict | None, accumulation: int, updates_per_epoch: int):
    """Our config in the Trainer's words. It says when to save; how is lmgym/checkpoints.py's."""
    from transformers import TrainingArguments

    o, r = config.optimizer, config.run
    updates = o.max_updates if o.max_updates > 0 else max(1, round(updates_per_epoch * o.epochs))
    on_cpu = not torch.cuda.is_available()
    return TrainingArguments(
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
        bf16=config.scorer.precision == "bf16",
        fp16=config.scorer.precision == "fp16",
        seed=o.seed,
        data_seed=o.seed,
        eval_strategy="steps",
        eval_steps=r.eval_updates or max(1, -(-updates // EVALUATIONS)),
        logging_steps=r.log_updates,
        logging_nan_inf_filter=False,  # a loss that is not finite is shown, not averaged away
        save_strategy="no" if r.save_updates < 0 else "steps",
        save_steps=max(1, r.save_updates or -(-updates // EVALUATIONS)),
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=r.data_workers,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if on_cpu and world_size() > 1 else None,
        use_cpu=on_cpu,
        deepspeed=copy.deepcopy(deepspeed),  # the Trainer fills it in place
    )
