"""Fixed prompts that are answered during training, with the scores of any scorers."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmgym.aids import aid
from lmgym.config import ModelConfig, SamplesConfig
from lmgym.data.mixing import read_sets
from lmgym.data.rejections import Rejection, tally
from lmgym.distributed.deepspeed_engine import whole_weights
from lmgym.distributed.ranks import all_gather_objects, rank
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling, sampling_from_config
from lmgym.models.config_fields import context_length
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.policies import PolicyModel, merged_copy
from lmgym.models.loading import load_config
from lmgym.runs.run import Run
from lmgym.scoring.protocol import Scorer, text_for
from lmgym.text import Conversation, render_all, reply_text, to_transcript, tokenize_texts
from lmgym.training.plan import TrainingPlan
from lmgym.training.probes import Report
from lmgym.training.reporting import show_notes, show_samples


@dataclass(frozen=True)
class SamplePrompt:
    """A conversation that is answered during training, and its row."""

    conversation: Conversation
    file: str
    line: int

    @property
    def origin(self) -> str:
        """file:line of its row."""
        return f"{self.file}:{self.line}"


def read_sample_prompts(
    settings: SamplesConfig,
    policy: ModelConfig,
    tokenizer,
    held_out: Iterable[SamplePrompt],
    read: Callable[..., tuple[list[SamplePrompt], list[Rejection]]],
) -> tuple[list[SamplePrompt], list[str]]:
    """(the fixed prompts, notes on rejected rows of `--prompts`); `read` takes the rows of that file's data sets.

    Raises InputError if a prompt of that file leaves no room for a reply; held-out rows that leave none are skipped.
    """
    notes: list[str] = []
    if settings.sample_prompts < 1:
        return [], []
    limit = context_length(load_config(policy.model, policy.trust_remote_code))
    room = limit - settings.sample_tokens
    if settings.prompts is None:
        return _first_that_fit(held_out, settings.sample_prompts, room, tokenizer), []
    sets = read_sets(settings.prompts, "test")
    found, rejections = read(*sets.values())
    counts = tally(rejections, sum(map(len, sets.values())))
    if not found:
        raise InputError(f"--prompts: no row can be used: {counts.line}; the first: {rejections[0]}")
    if rejections:
        notes = [f"--prompts: {counts.line}", *filter(None, [counts.warning])]
    texts = render_all(tokenizer, [prompt.conversation for prompt in found])
    for prompt, ids in zip(found, tokenize_texts(tokenizer, texts), strict=True):
        if len(ids) > room:
            raise InputError(
                f"--prompts: {prompt.file} line {prompt.line} has {len(ids)} tokens and fills the context; needed: at "
                f"most {room}, so that --sample_tokens {settings.sample_tokens} fit behind it in the {limit} that the "
                "model reads; shorten either"
            )
    return found[: settings.sample_prompts], notes


def _first_that_fit(prompts: Iterable[SamplePrompt], most: int, room: int, tokenizer) -> list[SamplePrompt]:
    """The first prompts of at most `room` tokens, each conversation once."""
    found: dict[Conversation, SamplePrompt] = {}
    for prompt in prompts:
        if len(found) == most:
            break
        if prompt.conversation not in found and prompt.conversation.turns:
            [ids] = tokenize_texts(tokenizer, render_all(tokenizer, [prompt.conversation]))
            if len(ids) <= room:
                found[prompt.conversation] = prompt
    return list(found.values())


def sampling_of(settings: SamplesConfig, generation_config: Any, seed: int) -> tuple[Sampling, str]:
    """(sampling of the fixed prompts, its source in words: flags, the model's generation_config.json, or defaults)."""
    sampling, source = sampling_from_config(generation_config, Sampling(settings.sample_tokens, seed=seed))
    temperature, top_p = settings.temperature, settings.top_p
    flags = ["--temperature"] * (temperature is not None) + ["--top_p"] * (top_p is not None)
    sampling = replace(
        sampling,
        temperature=sampling.temperature if temperature is None else temperature,
        top_p=sampling.top_p if top_p is None else top_p,
    )
    return sampling, ", ".join(flags if len(flags) == 2 else [*flags, source])


def sample_probe(
    plan: TrainingPlan[Any],
    prompts: Sequence[SamplePrompt],
    scorers: Mapping[str, Scorer],
    policy: PolicyModel,
    run: Run,
) -> "dict[str, SampleProbe]":
    """The probe of a run's fixed prompts by its name, with a note on their sampling; empty without prompts."""
    if not prompts:
        return {}
    o, settings = plan.config.optimizer, plan.config.samples
    sampling, source = sampling_of(settings, policy.causal.generation_config, o.seed)
    probe = SampleProbe(prompts, policy, plan.tokenizer, sampling, scorers, source)
    show_notes([f"samples: {probe.settings}"], run)
    return {"samples": probe}


class SampleProbe:
    """Answers to fixed prompts and their scores; generated by rank 0, with the same random numbers each time."""

    loss = ""

    def __init__(
        self,
        prompts: Sequence[SamplePrompt],
        model: PolicyModel,
        tokenizer,
        sampling: Sampling,
        scorers: Mapping[str, Scorer],
        source: str = "defaults",
    ) -> None:
        self.prompts, self.policy, self.tokenizer = prompts, model, tokenizer
        self.sampling, self.scorers = sampling, scorers
        self.settings = f"{sampling} ({source})"
        """sampling settings and their source, for people"""
        self.rows: list[dict[str, Any]] = []
        """of the last measurement, on rank 0"""
        self.report = Report({}, {})
        self.shown = {
            "tokens": "mean tokens of a reply",
            "ended": "replies that ended by themselves",
            **{f"score/{name}": f"mean score by {name}" for name in scorers},
        }

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Mean length, the share that ended by an eos, and mean scores. Collective where weights are sharded."""
        self.rows = []
        causal = self._whole_model(device)
        metrics = all_gather_objects({} if causal is None else self._answer(causal))[0]
        self.report = Report(metrics, {})
        return metrics

    def _whole_model(self, device: torch.device):
        """The model with whole weights on rank 0, None elsewhere: its own, or a copy where ZeRO-3 has sharded it."""
        if not any(hasattr(p, "ds_id") for p in self.policy.parameters()):
            return self.policy.causal if rank() == 0 else None
        weights = whole_weights(self.policy)
        if rank() != 0:
            return None
        whole = {name.removeprefix("model."): value for name, value in weights.items()}
        return merged_copy(self.policy.model, whole).to(device)

    @aid("answering the fixed prompts", dict)
    def _answer(self, causal) -> dict[str, float]:
        conversations = [prompt.conversation for prompt in self.prompts]
        # of a copy too: what a forward is made of is known
        generator = LocalGenerator(causal, self.tokenizer, decoder=Decoder(causal, self.policy.decoder.structure))
        replies = [group[0] for group in generator.reply(conversations, 1, self.sampling)]
        texts = [reply_text(reply.text) for reply in replies]
        scores = {
            name: scorer.score(conversations, [text_for(scorer, reply.text) for reply in replies]).tolist()
            for name, scorer in self.scorers.items()
        }
        self.rows = [
            {
                "row": prompt.origin,
                "prompt": to_transcript(prompt.conversation),
                "reply": text,
                "tokens": reply.tokens,
                "finish": reply.finish_reason,
                "scores": {name: values[i] for name, values in scores.items()},
            }
            for i, (prompt, text, reply) in enumerate(zip(self.prompts, texts, replies, strict=True))
        ]
        return {
            "tokens": float(np.mean([reply.tokens for reply in replies])),
            "ended": float(np.mean([reply.finish_reason == "eos" for reply in replies])),
            **{f"score/{name}": float(np.mean(values)) for name, values in scores.items()},
        }


@aid("the table of answers")
def show_answers(probe: SampleProbe | None, folder: Path, update: int) -> None:
    """Prints the answers of the model after this update, if there are any."""
    if probe is None or not probe.rows:
        return
    answers = folder / "samples" / f"{update:06d}.jsonl"
    rows = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    cells = [
        {"tokens": str(row["tokens"]), "end": row["finish"], **{n: f"{x:.3f}" for n, x in row["scores"].items()}}
        for row in rows
    ]
    show_samples(f"answers to the fixed prompts: {probe.settings}", rows, cells)
