"""From a config and a task to a scorer, in one straight line of numbered steps."""

import time
from collections.abc import Sequence
from dataclasses import replace

from lmgym.data.batching import UpdateSampler
from lmgym.data.task_data import TaskData
from lmgym.distributed.deepspeed_config import zero_stage
from lmgym.distributed.ranks import rank, stop_distributed, world_size
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_config, load_tokenizer
from lmgym.models.memory import check_memory, device_memory_gb, estimate
from lmgym.models.quantized import bits_of
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.runs.tracking import adopt_original_token_names
from lmgym.text import flat_template_note
from lmgym.training.reporting import show_notes, show_plan, show_warning
from lmgym.training.setup import adapt, join_ranks, kept_run, room_for_checkpoints, training_arguments, within_context
from reward_models.check import check_settings
from reward_models.config import RewardConfig
from reward_models.metrics.evaluations import EvaluationSet, find_file, read_evaluation
from reward_models.pairwise import PairTask
from reward_models.report import save_results, show_absent, show_results, show_rows
from reward_models.tasks import Task


def train_pairwise(config: RewardConfig) -> None:
    """`train` on pairs."""
    train(config, PairTask())


def train(config: RewardConfig, task: Task) -> None:
    """Trains a scorer, evaluates it and saves it. Raises InputError before training for what cannot work."""
    adopt_original_token_names()

    # 1. what can be refused before anything is loaded
    check_settings(config)

    # 2. the ranks, before TrainingArguments and before the model: ZeRO-3 shards at load
    deepspeed, accumulation = join_ranks(config, config.scorer, config.data.max_length)
    fitting = within_context(config.data.max_length, config.scorer)
    config = replace(config, data=replace(config.data, max_length=fitting))

    # 3. rows: read, validated, split, labelled, tokenised; and the sets that the scorer is judged on besides
    tokenizer = load_tokenizer(config.scorer.model, config.scorer.trust_remote_code)
    evaluations = _read_evaluations(config, task, tokenizer)  # first: it is small, and may be refused
    data = task.prepare(config, tokenizer)
    _refuse_excess_memory(config, deepspeed, data.replies)
    if rank() == 0:
        show_plan(config, config.scorer.precision, config.data.max_length, data, accumulation, deepspeed)
        show_notes(flat_template_note(tokenizer))
    if config.run.dry_run:
        if rank() == 0:
            show_rows(data.train[:3], task, tokenizer)
        stop_distributed()
        return

    # 4. the folder, locked, and what a former launch of this command left in it
    with kept_run(config, deepspeed, accumulation, data) as (run, supervisor, checkpoint):
        # 5. the model, its trainer, and the run
        trainer = _make_trainer(config, task, deepspeed, accumulation, tokenizer, data, evaluations, run, supervisor)
        began = time.perf_counter()
        trainer.train_from(checkpoint)

        # 6. judged after the last update, saved as an ordinary folder
        trainer.judge()
        with supervisor.saving_results(trainer.module):
            save_results(config, task, trainer, tokenizer, run)
        if run.is_main:
            show_results(config, data, trainer, time.perf_counter() - began, run.folder)
    stop_distributed()


def _read_evaluations(config: RewardConfig, task: Task, tokenizer) -> list[EvaluationSet]:
    """The task's evaluations that `--probe_data` has; of one that it lacks one line is said."""
    settings = config.data
    if settings.probe_data is None:
        return []
    found = []
    for evaluation in task.evaluations:
        path = find_file(settings.probe_data, evaluation.file)
        if path is not None:
            read = read_evaluation(path, evaluation, settings.probe_rows, tokenizer, settings.max_length)
            found.append(read)
            if rank() == 0 and read.left_out:
                show_notes([f"{path.name}: {read.left_out}"])
                show_warning(read.tally)
        elif rank() == 0:
            show_absent(settings.probe_data, evaluation)
    return found


def _refuse_excess_memory(config: RewardConfig, deepspeed: dict | None, replies: int) -> None:
    scorer, micro_batch = config.scorer, config.optimizer.micro_batch
    demand = estimate(
        load_config(scorer.model, scorer.trust_remote_code),
        replies * micro_batch * config.data.max_length,
        scorer.precision,
        deepspeed,
        world_size(),
        scorer.gradient_checkpointing,
        scorer,
    )
    check_memory(demand, config.run.memory_gb or device_memory_gb(), zero_stage(deepspeed), micro_batch)


def _make_trainer(
    config: RewardConfig,
    task: Task,
    deepspeed: dict | None,
    accumulation: int,
    tokenizer,
    data: TaskData,
    evaluations: Sequence[EvaluationSet],
    run: Run,
    supervisor: Supervisor | None = None,
):
    # the Trainer takes seconds to import: what is wrong with flags and data is said before
    from lmgym.training.callbacks import Progress
    from lmgym.training.trainer import ObjectiveTrainer
    from reward_models.probes import Probe, TranscriptProbe

    sampler = UpdateSampler(
        data.lengths, config.optimizer.global_batch, accumulation, world_size(), rank(), config.optimizer.seed
    )
    arguments = training_arguments(
        config, config.scorer.precision, deepspeed, accumulation, -(-len(sampler) // accumulation)
    )
    scoring = _make_model(config, task, tokenizer, run)
    if supervisor:
        supervisor.checkpoint_bytes = room_for_checkpoints(config, scoring, run)
    pad = tokenizer.pad_token_id
    batch_tokens = data.replies * config.optimizer.micro_batch * config.data.max_length
    probes: dict[str, Probe] = {"": task.probe(data, scoring, pad, batch_tokens)}
    for rows in evaluations:
        probes[rows.evaluation.name] = TranscriptProbe(rows, scoring, pad, batch_tokens, task.reduce)
    return ObjectiveTrainer(
        scoring,
        arguments,
        data.train,
        task.objective(config, scoring, pad),
        sampler,
        probes,
        run,
        [Progress()],
        supervisor,
    )


def _make_model(config: RewardConfig, task: Task, tokenizer, run: Run) -> ScoringModel:
    classifier, new_head = load_classifier(
        config.scorer.model,
        tokenizer,
        num_labels=task.outputs,
        seed=config.optimizer.seed,
        trust_remote_code=config.scorer.trust_remote_code,
        bits=bits_of(config.scorer),
    )
    run.update(new_head=new_head)
    adapted = adapt(classifier, config.scorer, run, config.optimizer.seed, config.trainer.lora_dropout)
    scoring = ScoringModel(adapted, config.trainer.packed)
    if run.is_main and scoring.decoder is not None and scoring.decoder.note:
        show_notes([scoring.decoder.note])
    return scoring
