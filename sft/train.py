"""From a config and a task to a policy that can talk, in one straight line of numbered steps."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lmgym.data.batching import UpdateSampler
from lmgym.data.records import read_records
from lmgym.data.rejections import tally
from lmgym.data.task_data import TaskData
from lmgym.distributed.deepspeed_config import zero_stage
from lmgym.distributed.ranks import rank, stop_distributed, world_size
from lmgym.errors import InputError
from lmgym.models.forward.policies import PolicyModel, load_policy, refuse_no_eos, refuse_unfit_policy
from lmgym.models.loading import context_length, load_config, load_tokenizer
from lmgym.models.memory import check_memory, device_memory_gb, estimate
from lmgym.models.quantized import bits_of
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.scoring.named_scorers import load_on_main_rank
from lmgym.scoring.scorers import Scorer
from lmgym.text import flat_template_note, render_all, tokenize_texts
from lmgym.training.reporting import show_notes, show_plan, show_warning
from lmgym.training.setup import adapt, join_ranks, kept_run, room_for_checkpoints, training_arguments, within_context
from sft.check import check_settings
from sft.config import SftConfig
from sft.probes import HeldOutProbe, Prompt, SampleProbe, sampling_of
from sft.report import KeepSamples, save_results, show_results, show_rows
from sft.tasks import SftTask


def train(config: SftConfig, task: SftTask) -> None:
    """Trains a policy, evaluates it and saves it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()

    # 1. what can be refused before anything is loaded
    check_settings(config)

    # 2. the ranks, before TrainingArguments and before the model: ZeRO-3 shards at load
    deepspeed, accumulation = join_ranks(config, config.policy, config.data.max_length)
    fitting = within_context(config.data.max_length, config.policy)
    config = replace(config, data=replace(config.data, max_length=fitting))

    # 3. rows: read, validated, split, tokenised; the prompts that are answered during training, and who judges answers
    tokenizer = load_tokenizer(config.policy.model, config.policy.trust_remote_code)
    refuse_unfit_policy(config.policy.model, load_config(config.policy.model, config.policy.trust_remote_code))
    refuse_no_eos(config.policy.model, tokenizer)
    data = task.prepare(config, tokenizer)
    prompts = _read_prompts(config, task, data, tokenizer)
    _refuse_excess_memory(config, deepspeed)
    scorers = load_on_main_rank(config.samples.scorers, config.samples.scorer_precision)
    if rank() == 0:
        show_plan(config, config.policy.precision, config.data.max_length, data, accumulation, deepspeed)
        show_notes(flat_template_note(tokenizer))
    if config.run.dry_run:
        if rank() == 0:
            show_rows(list(data.train[:3]), tokenizer)
        stop_distributed()
        return

    # 4. the folder, locked, and what a former launch of this command left in it
    with kept_run(config, deepspeed, accumulation, data) as (run, supervisor, checkpoint):
        # 5. the model, its trainer, and the run
        trainer = _make_trainer(
            config, task, deepspeed, accumulation, tokenizer, data, prompts, scorers, run, supervisor
        )
        began = time.perf_counter()
        trainer.train_from(checkpoint)

        # 6. judged after the last update, saved as an ordinary folder
        trainer.judge()
        with supervisor.saving_results(trainer.module):
            folder = save_results(config, task, trainer, tokenizer, run)
        if run.is_main:
            show_results(config, data, trainer, time.perf_counter() - began, folder)
    stop_distributed()


def _read_prompts(config: SftConfig, task: SftTask, data: TaskData, tokenizer) -> list[Prompt]:
    """The fixed prompts. Raises InputError for one of a named file that leaves no room for a reply."""
    settings = config.samples
    if settings.sample_prompts < 1:
        return []
    limit = context_length(load_config(config.policy.model, config.policy.trust_remote_code))
    room = limit - settings.sample_tokens
    if settings.prompts is None:
        chats = list({example.chat.prompt: example.chat for example in data.evaluation}.values())
    else:
        records = read_records(settings.prompts, "test")
        chats, rejections = task.validate(records)
        found = tally(rejections, len(records))
        if not chats:
            raise InputError(f"--prompts: no row can be used: {found.line}; the first: {rejections[0]}")
        if rank() == 0 and rejections:
            show_notes([f"--prompts: {found.line}"])
            show_warning(found)
    conversations = [chat.prompt for chat in chats]
    lengths = [len(ids) for ids in tokenize_texts(tokenizer, render_all(tokenizer, conversations))]
    if settings.prompts is not None and (full := [i for i, length in enumerate(lengths) if length > room]):
        raise InputError(
            f"--prompts: {chats[full[0]].file} line {chats[full[0]].line} has {lengths[full[0]]} tokens and fills the "
            f"context; needed: at most {room}, so that --sample_tokens {settings.sample_tokens} fit behind it in the "
            f"{limit} that the model reads; shorten either"
        )
    fitting = [chat for chat, length in zip(chats, lengths, strict=True) if length <= room]
    return [Prompt(chat.prompt, f"{chat.file}:{chat.line}") for chat in fitting[: settings.sample_prompts]]


def _refuse_excess_memory(config: SftConfig, deepspeed: dict | None) -> None:
    policy, micro_batch = config.policy, config.optimizer.micro_batch
    demand = estimate(
        load_config(policy.model, policy.trust_remote_code),
        micro_batch * config.data.max_length,
        policy.precision,
        deepspeed,
        world_size(),
        policy.gradient_checkpointing,
        policy,
        causal=True,
    )
    check_memory(demand, config.run.memory_gb or device_memory_gb(), zero_stage(deepspeed), micro_batch)


def _make_trainer(
    config: SftConfig,
    task: SftTask,
    deepspeed: dict | None,
    accumulation: int,
    tokenizer,
    data: TaskData,
    prompts: Sequence[Prompt],
    scorers: Mapping[str, Scorer],
    run: Run,
    supervisor: Supervisor | None = None,
):
    # the Trainer takes seconds to import: what is wrong with flags and data is said before
    from lmgym.training.callbacks import Progress
    from lmgym.training.trainer import ObjectiveTrainer

    o, precision = config.optimizer, config.policy.precision
    sampler = UpdateSampler(data.lengths, o.global_batch, accumulation, world_size(), rank(), o.seed)
    arguments = training_arguments(config, precision, deepspeed, accumulation, -(-len(sampler) // accumulation))
    loaded = load_policy(config.policy.model, tokenizer, config.policy.trust_remote_code, bits_of(config.policy))
    policy = PolicyModel(adapt(loaded, config.policy, run, o.seed, config.trainer.lora_dropout), config.trainer.packed)
    show_notes([policy.decoder.note] if run.is_main and policy.decoder.note else [])
    if supervisor:
        supervisor.checkpoint_bytes = room_for_checkpoints(config, policy, run)
    objective = task.objective(policy, tokenizer.pad_token_id)
    probes: dict = {"": HeldOutProbe(data.evaluation, objective, o.micro_batch * config.data.max_length)}
    callbacks: list = [Progress()]
    if prompts:
        sampling, source = sampling_of(config.samples, policy.causal.generation_config, o.seed)
        probes["samples"] = SampleProbe(prompts, policy, tokenizer, sampling, scorers, source)
        if run.is_main:
            show_notes([f"samples: {probes['samples'].settings}"])
        callbacks.append(KeepSamples(probes["samples"], run))
    return ObjectiveTrainer(policy, arguments, data.train, objective, sampler, probes, run, callbacks, supervisor)
