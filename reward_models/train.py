"""From a config to a scorer, in one straight line of numbered steps."""

import copy
import time
from dataclasses import dataclass

import torch

from lmgym.batching import UpdateSampler, accumulation_steps
from lmgym.engine import rank, read_config, start_distributed, stop_distributed, world_size, zero_stage
from lmgym.errors import InputError
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
from lmgym.records import read_records
from lmgym.run import Run
from lmgym.tracking import adopt_original_token_names
from reward_models.config import RewardConfig
from reward_models.data import (
    PairExample,
    Rejection,
    fingerprint,
    split_by_prompt,
    tokenize_pairs,
    validate,
    without_prompts,
    write_rejections,
)
from reward_models.report import save_results, show_plan, show_results, show_rows

EVALUATIONS = 5


@dataclass(frozen=True)
class PairData:
    """Everything that the pairs became."""

    train: list[PairExample]
    evaluation: list[PairExample]
    rejections: list[Rejection]
    fingerprint: str

    @property
    def counts(self) -> dict[str, int]:
        """What is printed and recorded: nothing goes missing silently."""
        truncated = sum(e.replies.truncated > 0 for e in (*self.train, *self.evaluation))
        return {
            "train_pairs": len(self.train),
            "eval_pairs": len(self.evaluation),
            "truncated_pairs": truncated,
            "rejected_rows": len(self.rejections),
        }


def train_pairwise(config: RewardConfig) -> None:
    """Trains a scorer on pairs, evaluates it and saves it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()

    # 1. what can be refused before anything is loaded
    deepspeed = read_config(config.run.deepspeed) if config.run.deepspeed else None
    accumulation = accumulation_steps(config.optimizer.global_batch, config.optimizer.micro_batch, world_size())
    _refuse_impossible(config)

    # 2. the ranks, before TrainingArguments and before the model: ZeRO-3 shards at load
    start_distributed(use_deepspeed=deepspeed is not None)

    # 3. pairs: read, validated, split by prompt, tokenised
    tokenizer = load_tokenizer(config.scorer.model)
    data = prepare_pairs(config, tokenizer)
    _refuse_excess_memory(config, deepspeed)
    if rank() == 0:
        show_plan(config, data.counts, accumulation, deepspeed)
    if config.run.dry_run:
        if rank() == 0:
            show_rows(data.train[:3], tokenizer)
        stop_distributed()
        return

    with Run.start(
        config.output,
        flatten(config),
        config.optimizer.seed,
        config.run.tracking,
        data.fingerprint,
        is_main=rank() == 0,
        name=config.name,
    ) as run:
        run.update(data=data.counts)
        if run.is_main:
            write_rejections(run.folder / "rejected.jsonl", data.rejections)

        # 4. the model, its trainer, and the run
        trainer, probe = _make_trainer(config, deepspeed, accumulation, tokenizer, data, run)
        began = time.perf_counter()
        trainer.train()

        # 5. judged after the last update, saved as an ordinary folder
        if trainer.evaluated_at != trainer.state.global_step:
            trainer.evaluate()
        save_results(config, trainer, probe, tokenizer, run)
        if run.is_main:
            show_results(config, probe.report, data.counts, time.perf_counter() - began, run.folder)
    stop_distributed()


def prepare_pairs(config: RewardConfig, tokenizer) -> PairData:
    """Rows to tokenised pairs for training and evaluation."""
    settings = config.data
    records = read_records(settings.dataset, settings.dataset_split)[: settings.max_rows]
    usable = validate(records)
    rejections = list(usable.rejections)
    if not usable.pairs:
        raise InputError(f"none of the {len(records)} rows of {settings.dataset} is a usable pair: {rejections[0]}")
    if settings.eval_dataset:
        held_out = validate(read_records(settings.eval_dataset, "test"))
        kept, leaks = without_prompts(usable.pairs, held_out.pairs)
        rejections += [*held_out.rejections, *leaks]
        sides = (kept, held_out.pairs)
    else:
        sides = split_by_prompt(usable.pairs, settings.eval_size, config.optimizer.seed)
    train, too_long = tokenize_pairs(sides[0], tokenizer, settings.max_length)
    evaluation, too_long_held_out = tokenize_pairs(sides[1], tokenizer, settings.max_length)
    rejections += [*too_long, *too_long_held_out]
    for name, side in (("training", train), ("evaluation", evaluation)):
        if not side:
            raise InputError(
                f"no pair is left for {name}: {len(records)} rows, {len(rejections)} unusable; "
                "check rejected rows, --max_length and --eval_size"
            )
    _refuse_idle_ranks(len(train), config)
    return PairData(train, evaluation, rejections, fingerprint(*sides))


def _refuse_impossible(config: RewardConfig) -> None:
    if config.scorer.precision == "fp16" and not torch.cuda.is_available():
        raise InputError("--precision fp16 needs a GPU and none was found; use bf16 or fp32")
    if config.data.max_length < 8:
        raise InputError(f"--max_length {config.data.max_length} holds no conversation; needed: at least 8 tokens")
    limit = getattr(load_config(config.scorer.model), "max_position_embeddings", None)
    if limit and config.data.max_length > limit:
        raise InputError(
            f"--max_length {config.data.max_length} exceeds what {config.scorer.model} reads: {limit} tokens"
        )


def _refuse_idle_ranks(rows: int, config: RewardConfig) -> None:
    if rows < world_size():
        raise InputError(f"{rows} training pair(s) for {world_size()} ranks leaves ranks without data; use fewer ranks")


def _refuse_excess_memory(config: RewardConfig, deepspeed: dict | None) -> None:
    scorer, micro_batch = config.scorer, config.optimizer.micro_batch
    demand = estimate(
        load_config(scorer.model),
        2 * micro_batch * config.data.max_length,
        scorer.precision,
        deepspeed,
        world_size(),
        scorer.gradient_checkpointing,
        scorer.lora_rank,
    )
    refuse_excess(demand, config.run.memory_gb or device_memory_gb(), zero_stage(deepspeed), micro_batch)


def _make_trainer(config: RewardConfig, deepspeed, accumulation: int, tokenizer, data: PairData, run: Run):
    # the Trainer takes seconds to import: what is wrong with flags and data is said before
    from reward_models.objectives import Pairwise
    from reward_models.probes import PairProbe
    from reward_models.trainers import Progress, RewardTrainer

    lengths = [example.replies.tokens for example in data.train]
    sampler = UpdateSampler(
        lengths, config.optimizer.global_batch, accumulation, world_size(), rank(), config.optimizer.seed
    )
    arguments = training_arguments(config, deepspeed, accumulation, -(-len(sampler) // accumulation))
    classifier, new_head = load_classifier(config.scorer.model, tokenizer, seed=config.optimizer.seed)
    if config.scorer.gradient_checkpointing:
        classifier.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if config.scorer.lora_rank:
        classifier = add_lora(classifier, config.scorer.lora_rank, config.scorer.lora_alpha, config.scorer.lora_dropout)
    trainable, parameters = count_parameters(classifier)
    run.update(parameters=parameters, trainable_parameters=trainable, new_head=new_head)
    scoring = ScoringModel(classifier, config.scorer.packed)
    pad = tokenizer.pad_token_id
    batch_tokens = 2 * config.optimizer.micro_batch * config.data.max_length
    probe = PairProbe(data.evaluation, scoring, pad, batch_tokens)
    trainer = RewardTrainer(
        scoring,
        arguments,
        data.train,
        Pairwise(scoring, pad, config.optimizer.centering),
        sampler,
        {"": probe},
        run,
        [Progress()],
    )
    return trainer, probe


def training_arguments(config: RewardConfig, deepspeed: dict | None, accumulation: int, updates_per_epoch: int):
    """Our config in the Trainer's words. Checkpoints in mid-run are not its business here."""
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
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=r.data_workers,
        ddp_find_unused_parameters=False,
        ddp_backend="gloo" if on_cpu and world_size() > 1 else None,
        use_cpu=on_cpu,
        deepspeed=copy.deepcopy(deepspeed),  # the Trainer fills it in place
    )
