"""Checks of a preference run before weights are loaded and a folder is opened; they result in its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lmgym.data.prompts import read_rows_of_prompts
from lmgym.data.rejections import Rejection
from lmgym.data.task_data import TaskData
from lmgym.errors import InputError, shown
from lmgym.models.forward.policies import refuse_unfit_reference
from lmgym.runs.paths import with_absolute_paths
from lmgym.scoring.named_scorers import load_on_main_rank
from lmgym.scoring.protocol import Scorer
from lmgym.training.capabilities import check_capabilities
from lmgym.training.plan import TrainingPlan, check_trainer_settings, make_plan
from lmgym.training.precision import with_native_precision
from lmgym.training.samples import SamplePrompt, read_sample_prompts
from preferences.config import CONSTANTS, PreferenceConfig
from preferences.tasks import PreferenceTask, balance_notes


@dataclass(frozen=True)
class PreferencePlan:
    """All that is resolved before weights are loaded."""

    training: TrainingPlan[PreferenceConfig]
    task: PreferenceTask
    prompts: list[SamplePrompt]
    """answered during training"""
    scorers: Mapping[str, Scorer]
    """of those answers; on rank 0"""
    capabilities: Sequence[Any] = ()
    """tasks of lm-eval, at each evaluation"""


def check(config: PreferenceConfig) -> PreferencePlan:
    """Start the ranks, read the data and resolve every setting. Raises InputError for what cannot work."""
    config = with_native_precision(with_absolute_paths(config))
    check_settings(config)
    task = PreferenceTask(config.loss)

    def prepare(config: PreferenceConfig, tokenizer) -> TaskData:
        if config.reference.reference:
            refuse_unfit_reference(config.reference.reference, tokenizer, config.policy.trust_remote_code)
        return task.prepare(config, tokenizer)

    plan = make_plan(config, config.policy, prepare, generates=True)
    prompts, notes = read_prompts(plan.config, plan.data, plan.tokenizer)
    scorers = load_on_main_rank(config.samples.scorers)
    if task.has_thumbs:
        notes = [*notes, *balance_notes(config.loss, plan.data.train)]
    capabilities = check_capabilities(config.capabilities, plan.deepspeed)
    return PreferencePlan(replace(plan, notes=[*plan.notes, *notes]), task, prompts, scorers, capabilities)


def check_settings(config: PreferenceConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_trainer_settings(config, config.policy)
    loss, reference = config.loss, config.reference
    if loss.unused:
        name = loss.unused[0]
        users = " or ".join(f"--loss {other}" for other, names in CONSTANTS.items() if name in names)
        raise InputError(f"{name}={shown(getattr(loss, name))}, which --loss {loss.loss} does not use; needed: {users}")
    named = reference.reference or reference.reference_logprobs
    if not loss.has_reference and (named or reference.reference_source != "auto"):
        raise InputError(f"--loss {loss.loss} has no reference; needed: dpo, ipo, kto or bon, or no flags of one")
    if reference.reference_source == "adapter" and (named or not config.policy.lora_rank):
        found = f"reference {shown(named)}" if named else "lora_rank=0"
        raise InputError(
            f"reference_source=adapter with {found}; needed: --lora_rank above 0 and no other reference: it is the "
            "model below the adapter"
        )


def read_prompts(config: PreferenceConfig, data: TaskData, tokenizer) -> tuple[list[SamplePrompt], list[str]]:
    """The fixed prompts, of held-out rows or of `--prompts`, and notes: see `read_sample_prompts`."""

    def read(*sets) -> tuple[list[SamplePrompt], list[Rejection]]:
        rows, rejections = read_rows_of_prompts(*sets)
        return [SamplePrompt(row.task["prompt"], row.file, row.line) for row in rows], rejections

    held_out = (SamplePrompt(example.conversation, example.file, example.line) for example in data.evaluation)
    return read_sample_prompts(config.samples, config.policy, tokenizer, held_out, read)
