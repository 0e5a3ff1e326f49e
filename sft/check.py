"""Checks of an SFT run before weights are loaded and a folder is opened; they result in its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmgym.data.rejections import Rejection
from lmgym.data.task_data import TaskData
from lmgym.runs.paths import with_absolute_paths
from lmgym.scoring.named_scorers import load_on_main_rank
from lmgym.scoring.protocol import Scorer
from lmgym.training.capabilities import check_capabilities
from lmgym.training.plan import TrainingPlan, check_trainer_settings, make_plan
from lmgym.training.precision import with_native_precision
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
    capabilities: Sequence[Any] = ()
    """tasks of lm-eval, at each evaluation"""


def check(config: SftConfig, task: SftTask) -> SftPlan:
    """Start the ranks, read the data and resolve every setting. Raises InputError for what cannot work."""
    config = with_native_precision(with_absolute_paths(config))
    check_settings(config)
    plan = make_plan(config, config.policy, task.prepare, generates=True)
    prompts, notes = read_prompts(plan.config, task, plan.data, plan.tokenizer)
    scorers = load_on_main_rank(config.samples.scorers)
    capabilities = check_capabilities(config.capabilities, plan.deepspeed)
    return SftPlan(replace(plan, notes=[*plan.notes, *notes]), prompts, scorers, capabilities)


def check_settings(config: SftConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_trainer_settings(config, config.policy)


def read_prompts(config: SftConfig, task: SftTask, data: TaskData, tokenizer) -> tuple[list[SamplePrompt], list[str]]:
    """The fixed prompts and notes: see `read_sample_prompts`."""

    def read(*sets) -> tuple[list[SamplePrompt], list[Rejection]]:
        chats, rejections = task.validate(*sets)
        return [_sample_prompt(chat) for chat in chats], rejections

    held_out = (SamplePrompt(row.prompt, row.file, row.line) for row in data.evaluation)
    return read_sample_prompts(config.samples, config.policy, tokenizer, held_out, read)


def _sample_prompt(chat: TrainingChat) -> SamplePrompt:
    return SamplePrompt(chat.prompt, chat.file, chat.line)
