"""Evaluations during training: held-out conversations on all ranks, and fixed prompts that are answered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from lmgym.data.batching import length_batches, shared_out
from lmgym.distributed.deepspeed_engine import whole_weights
from lmgym.distributed.ranks import all_gather_objects, rank, sum_over_ranks, world_size
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling, own_sampling
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.policies import PolicyModel, plain_copy
from lmgym.scoring.scorers import Scorer
from lmgym.text import Conversation, reply_text, to_transcript
from lmgym.training.objectives import Objective
from lmgym.training.probes import Report
from sft.config import SamplesConfig
from sft.tokenization import Example

MOST_NATS = 700.0  # whose exponential a float still holds


class HeldOutProbe:
    """How well the model predicts the outputs of held-out conversations: sums over all ranks, each row once."""

    loss = "loss"
    shown: Mapping[str, str] = {
        "perplexity": "perplexity of an output token",
        "token_accuracy": "likeliest token right",
        "loss": "loss an output token",
    }

    def __init__(self, examples: Sequence[Example], objective: Objective, batch_tokens: int) -> None:
        self.examples, self.objective = examples, objective
        self.batches = length_batches([len(example.ids) for example in examples], batch_tokens)
        self.tokens = np.array([len(example.targets) for example in examples])
        self.sums = np.zeros((len(examples), 3))
        self.report = Report({}, {})

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Perplexity, accuracy and loss, of all output tokens."""
        # a row's nats and right tokens; the loss is a batch's, kept with its first row
        sums = torch.zeros(len(self.examples), 3, dtype=torch.float64, device=device)
        for rows, counts in shared_out(self.batches, world_size(), rank()):
            batch = self.objective.collate([(self.examples[i], True) for i in rows])
            batch = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            with torch.no_grad():
                logits = model(**{name: value.to(device) for name, value in batch["inputs"].items()})
                if counts:
                    self._add(sums, rows, logits, batch)
        self.sums = sum_over_ranks(sums).cpu().numpy()
        nats, right, loss = (self.sums.sum(0) / self.tokens.sum()).tolist()
        metrics = {"perplexity": float(np.exp(min(nats, MOST_NATS))), "token_accuracy": right, "loss": loss}
        self.report = Report(metrics, {})
        return metrics

    def _add(self, sums: torch.Tensor, rows: list[int], logits: torch.Tensor, batch: dict[str, Any]) -> None:
        targets = batch["targets"]
        owners = torch.tensor(rows, device=logits.device).repeat_interleave(
            torch.from_numpy(self.tokens[rows]).to(logits.device)
        )
        nats = F.cross_entropy(logits, targets, reduction="none").double()
        sums[:, 0].index_add_(0, owners, nats)
        sums[:, 1].index_add_(0, owners, (logits.argmax(-1) == targets).double())
        sums[rows[0], 2] += self.objective.loss(logits, batch)[0].double()

    def lines(self) -> Iterator[dict[str, Any]]:
        """A line of held_out.jsonl a row: where it stands, its output tokens, nats and share of right ones a token."""
        for example, tokens, (nats, right, _) in zip(self.examples, self.tokens.tolist(), self.sums, strict=True):
            yield {"row": example.origin, "tokens": tokens, "loss": nats / tokens, "accuracy": right / tokens}


@dataclass(frozen=True)
class SamplePrompt:
    """A conversation that waits for the bot, and where it was found."""

    conversation: Conversation
    origin: str


def sampling_of(settings: SamplesConfig, generation_config: Any, seed: int) -> tuple[Sampling, str]:
    """How the fixed prompts are answered, and where that is said: by flags, by the model's folder, or nowhere."""
    sampling, source = own_sampling(generation_config, Sampling(settings.sample_tokens, seed=seed))
    temperature, top_p = settings.temperature, settings.top_p
    said = ["--temperature"] * (temperature is not None) + ["--top_p"] * (top_p is not None)
    sampling = replace(
        sampling,
        temperature=sampling.temperature if temperature is None else temperature,
        top_p=sampling.top_p if top_p is None else top_p,
    )
    return sampling, ", ".join(said if len(said) == 2 else [*said, source])


class SampleProbe:
    """What the model answers to fixed prompts, with what scorers say of it; by rank 0, at the same noise each time."""

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
        """how answers are drawn and where that is said, for people"""
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
        causal = self._whole_model(device)
        said = all_gather_objects({} if causal is None else self._answer(causal))[0]
        self.report = Report(said, {})
        return said

    def _whole_model(self, device: torch.device):
        """The model with whole weights on rank 0, None elsewhere: its own, or a copy where ZeRO-3 has sharded it."""
        if not any(hasattr(p, "ds_id") for p in self.policy.parameters()):
            return self.policy.causal if rank() == 0 else None
        weights = whole_weights(self.policy)
        if rank() != 0:
            return None
        whole = {name.removeprefix("model."): value for name, value in weights.items()}
        return plain_copy(self.policy.model, whole).to(device)

    def _answer(self, causal) -> dict[str, float]:
        conversations = [prompt.conversation for prompt in self.prompts]
        # of a copy too: what a forward is made of is known
        generator = LocalGenerator(causal, self.tokenizer, decoder=Decoder(causal, self.policy.decoder.anatomy))
        replies = [group[0] for group in generator.reply(conversations, 1, self.sampling)]
        texts = [reply_text(reply.text) for reply in replies]
        scores = {name: scorer.score(conversations, texts).tolist() for name, scorer in self.scorers.items()}
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
