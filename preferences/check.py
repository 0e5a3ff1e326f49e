"""Checks of a preference run before weights are loaded and a folder is opened; they result in its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmgym.config import check_eval_size, check_shared_settings
from lmgym.data.batching import accumulation_steps
from lmgym.data.prompts import read_rows_of_prompts
from lmgym.data.rejections import Rejection
from lmgym.data.task_data import TaskData
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError, shown
from lmgym.models.forward.policies import refuse_no_eos, refuse_unfit_policy, refuse_unfit_reference
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.runs.paths import with_absolute_paths
from lmgym.scoring.named_scorers import load_on_main_rank
from lmgym.scoring.protocol import Scorer
from lmgym.text import flat_template_note
from lmgym.training.best import check_best
from lmgym.training.plan import TrainingPlan, check_training_memory, fit_to_context, start_ranks
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


def check(config: PreferenceConfig) -> PreferencePlan:
    """Start the ranks, read the data and resolve every setting. Raises InputError for what cannot work."""
    # 1. the settings alone
    config = with_absolute_paths(config)
    check_settings(config)
    o, policy, task = config.optimizer, config.policy, PreferenceTask(config.loss)
    accumulation = accumulation_steps(o.global_batch, o.micro_batch, world_size())
    deepspeed = start_ranks(config, policy, accumulation)

    # 2. the model's config and tokenizer
    max_length, notes = fit_to_context(config.data.max_length, policy)
    config = replace(config, data=replace(config.data, max_length=max_length))
    tokenizer = load_tokenizer(policy.model, policy.trust_remote_code)
    refuse_unfit_policy(policy.model, load_config(policy.model, policy.trust_remote_code))
    refuse_no_eos(policy.model, tokenizer)
    if config.reference.reference:
        refuse_unfit_reference(config.reference.reference, tokenizer, policy.trust_remote_code)

    # 3. the data
    data = task.prepare(config, tokenizer)
    prompts, prompt_notes = read_prompts(config, data, tokenizer)
    check_training_memory(config, policy, deepspeed, data.replies * max_length, causal=True)
    scorers = load_on_main_rank(config.samples.scorers, config.samples.scorer_precision)
    notes = [*notes, *flat_template_note(tokenizer), *prompt_notes]
    if task.has_thumbs:
        notes += balance_notes(config.loss, data.train)
    training = TrainingPlan(config, policy, deepspeed, accumulation, tokenizer, data, notes)
    return PreferencePlan(training, task, prompts, scorers)


def check_settings(config: PreferenceConfig) -> None:
    """Raises InputError for settings out of their range, or that do not go together."""
    check_shared_settings(config, config.policy)
    check_eval_size(config.data.eval_size, "rows")
    check_best(config.trainer)
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
