"""`lmgym estimate`: the memory of a run on each GPU, without data, weights or a GPU; a model's config is enough."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from lmgym.aids import aid
from lmgym.console import say
from lmgym.errors import InputError, did_you_mean
from lmgym.runs.flags import override
from lmgym.runs.launch import STAGES, launch
from lmgym.runs.launching import FORMS

GIB = 1 << 30
USUAL_PROMPT = 512
CUDA_GIB = 1.0  # of a process: its context and libraries
GPU_GB = (16, 24, 32, 40, 48, 80, 96, 141)


class Estimated(NamedTuple):
    """A run's memory and what it is of."""

    memory: Any
    """a MemoryEstimate"""
    model: str
    total: int
    trained: int
    rows: str

    @property
    def parts(self) -> dict[str, float]:
        """GiB on each GPU by part."""
        names = ("weights", "gradients", "optimizer", "activations")
        return {name: getattr(self.memory, name) / GIB for name in names} | {"CUDA": CUDA_GIB}

    @property
    def gib(self) -> float:
        """GiB on each GPU."""
        return sum(self.parts.values())

    @property
    def gpu(self) -> int | None:
        """GB of the smallest usual GPU that holds it; None for more than any has."""
        return next((size for size in GPU_GB if size * 1e9 / GIB >= self.gib), None)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("word", metavar="|".join(FORMS))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option("--num_gpus", default=1, show_default=True, type=click.IntRange(1, 1024), help="that share the run")
def estimate(word: str, flags: tuple[str, ...], num_gpus: int) -> None:
    """Estimate the memory of a run on each GPU: `lmgym estimate grpo --model Qwen/Qwen3-8B --lora_rank 16`.

    Takes the flags of `lmgym train`. Of the model only its config is read.
    """
    launch(lambda: show(estimate_of(word, flags, num_gpus), num_gpus))


def show(found: Estimated, num_gpus: int) -> None:
    """Print the parts and the smallest usual GPU that holds them."""
    say(f"{found.model}: {found.total / 1e9:.2f} billion weights, {found.trained / 1e9:.3g} billion trained")
    say(f"{num_gpus} GPU{'s' * (num_gpus > 1)}: {found.rows}")
    for name, size in found.parts.items():
        say(f"{name:>12} {size:8.1f} GiB")
    sizes = f"fits {found.gpu} GB" if found.gpu else f"more than the {GPU_GB[-1]} GB of the largest usual GPU"
    say(f"{'in all':>12} {found.gib:8.1f} GiB on each GPU: {sizes}; scorers come on top")


def estimate_of(word: str, flags: Sequence[str], ranks: int = 1) -> Estimated:
    """The memory of `lmgym train WORD FLAGS`. Raises InputError for a word or a model that is not known."""
    from lmgym.distributed.deepspeed_config import read_config
    from lmgym.models.loading import load_config
    from lmgym.models.memory import count_weights, estimate_memory

    if word not in FORMS:
        raise InputError(f"{word} is nothing to train; {did_you_mean(word, FORMS)}needed: {', '.join(FORMS)}")
    form = FORMS[word]
    experiment = importlib.import_module(f"{STAGES[form.stage]}.experiments.{form.experiment}")
    config = override(experiment.CONFIG, form.words(flags))
    deepspeed = read_config(config.run.deepspeed) if config.run.deepspeed else None
    settings = getattr(config, "policy", None) or config.scorer
    model = load_config(settings.model, settings.trust_remote_code)
    if form.stage == "ppo":
        from ppo.memory import count_trained, estimate_run

        prompt, rollout = config.rollout.max_prompt or USUAL_PROMPT, config.rollout
        counts = _counts(lambda: count_trained(config, model))
        memory = estimate_run(config, deepspeed, prompt, ranks, counts)
        rows = (
            f"{rollout.num_rollouts} replies of {rollout.max_new_tokens} tokens to prompts of {prompt}, "
            f"{_micro_batch(config.optimizer)} a micro-batch"
        )
    else:
        replies = 1 if form.stage == "sft" else 2
        tokens = config.optimizer.batch_tokens(config.data.max_length * replies)
        causal = form.stage != "reward"
        counts = _counts(lambda: count_weights(model, settings, causal))
        row = config.data.max_length if config.trainer.dropout else 0
        memory = estimate_memory(model, tokens, settings, deepspeed, ranks, causal, counts=counts, dropout_row=row)
        rows = f"{config.optimizer.micro_batch * replies} row(s) of {config.data.max_length} tokens a micro-batch"
        if config.optimizer.tokens_per_micro_batch:
            rows = f"row(s) of {config.data.max_length} tokens, {_micro_batch(config.optimizer)} a micro-batch"
    if memory is None or counts is None:
        raise InputError(f"the memory of {settings.model} is unknown; needed: a short run (--max_updates 3)")
    return Estimated(memory, settings.model, counts.total, counts.trained, rows)


@aid("counting the weights", refuses=True)
def _counts(count: Callable[[], Any]) -> Any:
    return count()


def _micro_batch(optimizer: Any) -> str:
    """The size of a micro-batch: rows, or tokens."""
    tokens = optimizer.tokens_per_micro_batch
    return f"at most {tokens:,} tokens" if tokens else str(optimizer.micro_batch)
