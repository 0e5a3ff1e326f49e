"""Checks of an SFT run before weights are loaded and a folder is opened; they result in its plan."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmgym.config import check_eval_size, check_shared_settings
from lmgym.data.batching import accumulation_steps
from lmgym.data.mixing import read_sets
from lmgym.data.rejections import tally
from lmgym.data.task_data import TaskData
from lmgym.distributed.ranks import world_size
from lmgym.errors import InputError
from lmgym.models.config_fields import context_length
from lmgym.models.forward.policies import refuse_no_eos, refuse_unfit_policy
from lmgym.models.loading import load_config, load_tokenizer
from lmgym.scoring.named_scorers import load_on_main_rank
from lmgym.scoring.protocol import Scorer
from lmgym.text import flat_template_note, render_all, tokenize_texts
from lmgym.training.best import check_best
from lmgym.training.plan import TrainingPlan, check_training_memory, fit_to_context, start_ranks
from sft.config import SftConfig
from sft.probes import SamplePrompt
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
    """(the fixed prompts, notes on rejected rows of `--prompts`).

    Raises InputError if a prompt of that file leaves no room for a reply; held-out rows that leave none are skipped.
    """
    settings, notes = config.samples, []
    if settings.sample_prompts < 1:
        return [], []
    if settings.prompts is None:
        chats = list({example.chat.prompt: example.chat for example in data.evaluation}.values())
    else:
        sets = read_sets(settings.prompts, "test")
        chats, rejections = task.validate(*sets.values())
        found = tally(rejections, sum(map(len, sets.values())))
        if not chats:
            raise InputError(f"--prompts: no row can be used: {found.line}; the first: {rejections[0]}")
        if rejections:
            notes = [f"--prompts: {found.line}", *filter(None, [found.warning])]
    limit = context_length(load_config(config.policy.model, config.policy.trust_remote_code))
    room = limit - settings.sample_tokens
    prompts = []
    texts = render_all(tokenizer, [chat.prompt for chat in chats])
    for chat, ids in zip(chats, tokenize_texts(tokenizer, texts), strict=True):
        if len(ids) <= room:
            prompts.append(SamplePrompt(chat.prompt, f"{chat.file}:{chat.line}"))
        elif settings.prompts is not None:
            raise InputError(
                f"--prompts: {chat.file} line {chat.line} has {len(ids)} tokens and fills the context; needed: at most "
                f"{room}, so that --sample_tokens {settings.sample_tokens} fit behind it in the {limit} that the model "
                "reads; shorten either"
            )
    return prompts[: settings.sample_prompts], notes
