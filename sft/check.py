"""Checks of an SFT run before weights are loaded and a folder is opened; they result in its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmgym.config import check_eval_size, check_shared_settings
from lmgym.data.batching import accumulation_steps
from lmgym.data.rejections import Rejection
from lmgym.data.task_data import TaskData
from lmgym.distributed.ranks import world_size
from lmgym.models.forward.policies import refuse_no_eos, refuse_unfit_policy
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.runs.paths import with_absolute_paths
from lmgym.scoring.named_scorers import load_on_main_rank
from lmgym.scoring.protocol import Scorer
from lmgym.text import flat_template_note
from lmgym.training.best import check_best
from lmgym.training.plan import TrainingPlan, check_training_memory, fit_to_context, start_ranks
from lmgym.training.samples import SamplePrompt, read_sample_prompts
from sft.config import SftConfig
from sft.conversations import TrainingChat
from sft.tasks import SftTask


@dataclass(frozen=True)
class SftPlan:
    """All that is resolved before weights are loaded."""

    training: TrainingPlan[SftConfig]
    prompts: list[SamplePrompt]
    """answered during training"""
    scorers: Mapping[str, Scorer]
    """of those answers; on rank 0"""


def check(config: SftConfig, task: SftTask) -> SftPlan:
    """Start the ranks, read the data and resolve every setting. Raises InputError for what cannot work."""
    # 1. the settings alone
    config = with_absolute_paths(config)
    check_settings(config)
    o, policy = config.optimizer, config.policy
    accumulation = accumulation_steps(o.global_batch, o.micro_batch, world_size())
    deepspeed = start_ranks(config, policy, accumulation)

    # 2. the model's config and tokenizer
    max_length, notes = fit_to_context(config.data.max_length, policy)
    config = replace(config, data=replace(config.data, max_length=max_length))
    tokenizer = load_tokenizer(policy.model, policy.trust_remote_code)
    refuse_unfit_policy(policy.model, load_config(policy.model, policy.trust_remote_code))
    refuse_no_eos(policy.model, tokenizer)

    # 3. the data
    data = task.prepare(config, tokenizer)
    prompts, prompt_notes = read_prompts(config, task, data, tokenizer)
    check_training_memory(config, policy, deepspeed, max_length, causal=True)
    scorers = load_on_main_rank(config.samples.scorers, config.samples.scorer_precision)
    notes = [*notes, *flat_template_note(tokenizer), *prompt_notes]
    return SftPlan(TrainingPlan(config, policy, deepspeed, accumulation, tokenizer, data, notes), prompts, scorers)


def check_settings(config: SftConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_shared_settings(config, config.policy)
    check_eval_size(config.data.eval_size, "rows")
    check_best(config.trainer)


def read_prompts(config: SftConfig, task: SftTask, data: TaskData, tokenizer) -> tuple[list[SamplePrompt], list[str]]:
    """The fixed prompts and notes: see `read_sample_prompts`."""

    def read(*sets) -> tuple[list[SamplePrompt], list[Rejection]]:
        chats, rejections = task.validate(*sets)
        return [_sample_prompt(chat) for chat in chats], rejections

    held_out = (SamplePrompt(row.prompt, row.file, row.line) for row in data.evaluation)
    return read_sample_prompts(config.samples, config.policy, tokenizer, held_out, read)


def _sample_prompt(chat: TrainingChat) -> SamplePrompt:
    return SamplePrompt(chat.prompt, chat.file, chat.line)
