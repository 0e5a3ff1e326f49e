"""Checks that stages share before weights are loaded, and the plan of a stage that runs Hugging Face's Trainer."""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from lmgym.aids import aid
from lmgym.config import (
    LengthSettings,
    ModelConfig,
    RowsConfig,
    StageConfig,
    TrainerConfig,
    UpTo,
    check_eval_size,
    check_shared_settings,
    largest_divisor,
)
from lmgym.console import say
from lmgym.data.batching import accumulation_steps
from lmgym.data.task_data import TaskData
from lmgym.distributed.deepspeed_config import match_run, read_config, zero_stage
from lmgym.distributed.deepspeed_engine import engine_name
from lmgym.distributed.ranks import raise_on_all_ranks, rank, start_distributed, world_size
from lmgym.errors import FEWEST_TOKENS, InputError, shown_path
from lmgym.models.config_fields import context_length
from lmgym.models.forward.policies import refuse_no_eos, refuse_unfit_policy
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.models.memory import check_memory, device_memory_gb, estimate_memory, refuse_absent_modules
from lmgym.runs.hub import refuse_unfit_push
from lmgym.runs.tracking import refuse_missing_tracker
from lmgym.training.best import check_best
from lmgym.training.reporting import show_notes, show_rejections
from lmgym.turn_ends import template_notes

FEWEST_UPDATES = 16
"""of an epoch, where the user did not set the batch"""
FEW_UPDATES = 8


class RowsStageConfig(StageConfig, Protocol):
    """The config of a stage that runs Hugging Face's Trainer on rows."""

    @property
    def data(self) -> RowsConfig: ...
    @property
    def trainer(self) -> TrainerConfig: ...


class TrainerStageConfig(StageConfig, Protocol):
    """The config of a stage that runs Hugging Face's Trainer."""

    @property
    def data(self) -> LengthSettings: ...
    @property
    def trainer(self) -> TrainerConfig: ...


C_co = TypeVar("C_co", bound=TrainerStageConfig, covariant=True)
C = TypeVar("C", bound=TrainerStageConfig)


@dataclass(frozen=True)
class TrainingPlan(Generic[C_co]):
    """All that is resolved before weights are loaded."""

    config: C_co
    model: ModelConfig
    deepspeed: dict | None
    accumulation: int
    """micro-batches of a rank in an update"""
    tokenizer: Any
    data: TaskData
    notes: list[str]

    @property
    def updates(self) -> int:
        """Of the whole run."""
        o = self.config.optimizer
        return o.max_updates if o.max_updates > 0 else max(1, round(self.updates_per_epoch * o.epochs))

    @property
    def updates_per_epoch(self) -> int:
        """The last one may be of fewer rows."""
        return -(-len(self.data.train) // self.config.optimizer.global_batch)

    def show(self) -> None:
        """Prints the data, the rejected rows, how the run is spread over ranks, and notes; on rank 0."""
        if rank() != 0:
            return
        data, o, unused = self.data, self.config.optimizer, self.data.counts.get("unused_rows")
        show_notes(data.notes)
        in_last_turn = f" ({data.shortened:,} of them in their last turn)" if data.shortened else ""
        say(
            f"{len(data.train):,} {data.noun} to train on, {len(data.evaluation):,} to evaluate on; "
            f"{data.truncated:,} truncated to {self.config.data.max_length} tokens{in_last_turn}"
            f"{f', {unused:,} beyond the limits' if unused else ''}"
        )
        show_rejections(data.tally)
        show_notes([part.line(data.noun) for part in data.parts])
        cut = f"= {world_size()} x {self.accumulation} micro-batches of {o.micro_batch}"
        if o.tokens_per_micro_batch:
            cut = f"in micro-batches of at most {o.tokens_per_micro_batch:,} tokens"
        say(
            f"{engine_name(self.deepspeed)}, {world_size()} rank(s), {self.model.precision}; "
            f"{o.global_batch} {data.noun} an update {cut}; "
            f"{self.updates:,} updates, {self.updates / self.updates_per_epoch:.3g} epoch(s)"
        )
        if self.updates < FEW_UPDATES:
            say(f"{self.updates} updates teach little: a smaller --global_batch or more --epochs make more of them")
        show_notes(self.notes)


def check_trainer_settings(config: RowsStageConfig, model: ModelConfig) -> None:
    """Raises InputError for settings of a stage on rows that are out of their range, or do not go together."""
    check_shared_settings(config, model)
    check_eval_size(config.data.eval_size, "rows")
    check_best(config.trainer)


def make_plan(
    config: C, model: ModelConfig, prepare: Callable[[C, Any], TaskData], generates: bool = False
) -> TrainingPlan[C]:
    """The plan of a run whose settings are checked, once all ranks have started.

    `prepare` reads the data, with a `max_length` that the model can read and its tokenizer. `generates`: the model is a
    policy rather than a scorer. Raises InputError for what cannot work.
    """
    config = fit_micro_batch(config)
    o = config.optimizer
    accumulation = accumulation_steps(o.global_batch, o.smallest_micro_batch, world_size())
    deepspeed = start_ranks(config, model, accumulation)
    max_length, notes = fit_to_context(config.data.max_length, model)
    config = replace(config, data=replace(config.data, max_length=max_length))  # type: ignore[type-var]
    tokenizer = load_tokenizer(model.model, model.trust_remote_code)
    if generates:
        refuse_unfit_policy(model.model, load_config(model.model, model.trust_remote_code))
        refuse_no_eos(model.model, tokenizer)
    data = prepare(config, tokenizer)
    config = fit_batch(config, deepspeed, len(data.train))
    accumulation = accumulation_steps(config.optimizer.global_batch, o.smallest_micro_batch, world_size())
    dropout_row = max_length if config.trainer.dropout else 0
    check_training_memory(config, model, deepspeed, data.replies * max_length, generates, dropout_row)
    notes += [
        *template_notes(tokenizer),
        *long_rows_note(data, o.tokens_per_micro_batch),
    ]
    return TrainingPlan(config, model, deepspeed, accumulation, tokenizer, data, notes)


@aid("the note on long rows", list)
def long_rows_note(data: TaskData, tokens: int | None) -> list[str]:
    """A line if rows exceed `--tokens_per_micro_batch`."""
    long = np.asarray(data.lengths)[np.asarray(data.lengths) > (tokens or np.inf)]
    if not len(long):
        return []
    return [
        f"{len(long):,} of {len(data.train):,} {data.noun} have more tokens than --tokens_per_micro_batch {tokens:,}, "
        f"at most {max(long):,}: each runs alone"
    ]


def fit_micro_batch(config: C) -> C:
    """The config with micro-batches that divide a rank's part of an update, where the user did not set them."""
    o, ranks = config.optimizer, world_size()
    if not isinstance(o.micro_batch, UpTo) or o.global_batch < ranks or o.global_batch % ranks:
        return config
    fitting = UpTo(largest_divisor(o.global_batch // ranks, o.micro_batch))
    return replace(config, optimizer=replace(o, micro_batch=fitting))  # type: ignore[type-var]


def fit_batch(config: C, deepspeed: dict | None, rows: int) -> C:
    """The config with a smaller batch where the rows are few: FEWEST_UPDATES an epoch, of whole micro-batches.

    A batch that the user set, also in a DeepSpeed config, stays.
    """
    batch, together = config.optimizer.global_batch, config.optimizer.smallest_micro_batch * world_size()
    given = {(deepspeed or {}).get(name, "auto") for name in ("train_batch_size", "gradient_accumulation_steps")}
    if not isinstance(batch, UpTo) or given != {"auto"}:
        return config
    fitting = int(batch)
    while rows < FEWEST_UPDATES * fitting and fitting % (2 * together) == 0:
        fitting //= 2
    return replace(config, optimizer=replace(config.optimizer, global_batch=fitting))  # type: ignore[type-var]


def start_ranks(config: StageConfig, model: ModelConfig, accumulation: int) -> dict | None:
    """Return DeepSpeed's config, if any, once all ranks have started.

    Before that, raises InputError for a config that does not agree with the settings, for fp16 without a GPU, for
    quantization that the engine cannot train, and for a tracker that is not installed; after it, for a push that the
    hub would refuse. Call it before TrainingArguments and the model: ZeRO-3 shards at load.
    """
    deepspeed = read_config(config.run.deepspeed) if config.run.deepspeed else None
    refuse_missing_tracker(config.run.tracking)
    refuse_fp16_without_gpu(model)
    refuse_unfit_quantization(model, deepspeed)
    if deepspeed is not None:
        o = config.optimizer
        match_run(deepspeed, o.smallest_micro_batch, accumulation, world_size(), model.precision, o.max_grad_norm)
    start_distributed(deepspeed is not None, config.run.stall_timeout)
    check_push(config, model)
    return deepspeed


def check_push(config: StageConfig, model: ModelConfig) -> None:
    """Raises InputError if what is trained cannot be pushed to the hub as asked: its name, or the token. Collective.

    A hub that does not answer is a line alone: a run that resumes must not depend on it.
    """
    repository = config.sharing.push_to_hub
    if repository is None:
        return
    is_adapter = model.lora_rank > 0 and not getattr(config, "merge_adapter", True)
    if is_adapter and os.path.exists(model.model):
        raise InputError(
            f"--push_to_hub of an adapter of {shown_path(model.model)}, a folder that others do not have; needed: "
            "--merge_adapter, or --model OWNER/NAME, a model on the hub"
        )
    raise_on_all_ranks(lambda: refuse_unfit_push(repository) if rank() == 0 else None)


def refuse_unfit_quantization(model: ModelConfig, deepspeed: dict[str, Any] | None) -> None:
    """Raises InputError, before anything is loaded, if quantised weights are requested and not possible."""
    bits = model.bits
    if not bits:
        return
    flag = f"--load_in_{bits}bit"
    if model.load_in_4bit and model.load_in_8bit:
        raise InputError("found both --load_in_4bit and --load_in_8bit; needed: one of them")
    if not model.lora_rank:
        raise InputError(f"{flag} with --lora_rank 0: quantised weights cannot be trained; needed: --lora_rank 16")
    if zero_stage(deepspeed) == 3:
        raise InputError(
            f"{flag} under ZeRO-3, which cannot shard quantised weights; needed: --deepspeed zero2 or none"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(f"{flag} needs bitsandbytes; needed: pip install 'lmgym[quantized]', or leave it out")


def refuse_fp16_without_gpu(model: ModelConfig) -> None:
    """Raises InputError for a precision that a CPU does not have."""
    if model.precision == "fp16" and not torch.cuda.is_available():
        raise InputError("--precision fp16 needs a GPU and none was found; use bf16 or fp32")


def fit_to_context(max_length: int, model: ModelConfig) -> tuple[int, list[str]]:
    """Return the smaller of `--max_length` and the model's context, with a note if that is less.

    Raises InputError for a context that is too short for any conversation.
    """
    limit = context_length(load_config(model.model, model.trust_remote_code))
    if limit < FEWEST_TOKENS:
        raise InputError(
            f"{model.model} reads {limit} tokens, its context, too few for a conversation; needed: a model that "
            f"reads at least {FEWEST_TOKENS}"
        )
    if max_length <= limit:
        return max_length, []
    found = f"--max_length {max_length} exceeds what {model.model} reads"
    return limit, [f"{found}: rows are truncated to its {limit} tokens"]


def fit_prompts_to_context(max_prompt: int, context: int, max_new_tokens: int, model: str) -> tuple[int, list[str]]:
    """Return the smaller of `--max_prompt` and the context less a reply, with a note if that is less."""
    left = context - max_new_tokens
    if max_prompt <= left or left < 1:  # without room for a reply `room_for_prompts` refuses the run
        return max_prompt, []
    found = f"--max_prompt {max_prompt} exceeds what {model} reads beside a reply of {max_new_tokens} tokens"
    return left, [f"{found}: prompts are truncated to {left} tokens"]


def check_training_memory(
    config: StageConfig,
    model: ModelConfig,
    deepspeed: dict | None,
    row_tokens: int,
    causal: bool = False,
    dropout_row: int = 0,
) -> None:
    """Raises InputError if training on micro-batches of rows of `row_tokens` needs more than a device's memory, or if
    adapters are to be on modules that do not exist. `dropout_row` as in `activation_bytes`.
    """
    found, memory = load_config(model.model, model.trust_remote_code), config.run.memory_gb or device_memory_gb()
    refuse_absent_modules(found, model, causal)
    if memory is None:
        return
    tokens = config.optimizer.batch_tokens(row_tokens)
    demand = estimate_memory(found, tokens, model, deepspeed, world_size(), causal, dropout_row=dropout_row)
    check_memory(demand, memory, zero_stage(deepspeed), tokens // row_tokens)
