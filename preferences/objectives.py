"""Objectives of preference training: from examples to a batch, and from tokens' log-probabilities to a loss."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lmgym.distributed.deepspeed_engine import end_prefetch
from lmgym.distributed.ranks import sum_over_ranks
from lmgym.models.forward.policies import PolicyModel
from lmgym.text import Replies
from lmgym.training.objectives import Batch
from preferences.config import LossConfig
from preferences.examples import PairExample, ThumbExample
from preferences.losses import SumAndCount, kto_baseline
from preferences.rewards import log_ratios, pair_loss, reply_sums, rewards, thumb_loss


@dataclass(frozen=True)
class ReplyModel:
    """A policy as objectives and probes call it."""

    policy: PolicyModel
    end: int
    """id of the token that ends a reply, unless its row names another"""
    uses_adapter: bool = False
    """the reference is the policy with its adapters off"""

    def collate(self, rows: Sequence[Replies]) -> Batch:
        """Model `inputs`, and `lengths` [replies] in tokens, the end of each included."""
        lengths = [len(suffix) for row in rows for suffix in row.suffixes]
        return {"inputs": self.policy.collate_replies(rows, self.end), "lengths": torch.tensor(lengths)}

    @torch.no_grad()
    def sums(self, model: torch.nn.Module, batch: Batch, device: torch.device, reference: bool = False) -> torch.Tensor:
        """[replies] summed log-probabilities of a collated batch, by `model`, which wraps the policy; in eval mode.

        With `reference`, those of the policy with its adapters off.
        """
        training = model.training
        model.eval()
        off = self.policy.model.disable_adapter() if reference else contextlib.nullcontext()
        with off:
            logprobs = model(**{name: value.to(device) for name, value in batch["inputs"].items()})
        model.train(training)
        return reply_sums(logprobs, batch["lengths"].to(device))


def _batch(model: ReplyModel, items: Sequence[tuple[Any, bool]]) -> Batch:
    """The part of a batch that both objectives share. A filler is alone in its batch and has no weight."""
    rows = [example.replies for example, _ in items]
    number = sum(counts for _, counts in items)
    return {
        **model.collate(rows),
        "items": number,
        "count": number,
        "origins": [example.origin for example, _ in items],
        "tokens": sum(row.tokens for row, (_, counts) in zip(rows, items, strict=True) if counts),
    }


def _nothing(logprobs: torch.Tensor) -> SumAndCount:
    """The loss of a filler: 0, with a gradient of 0."""
    return logprobs.sum() * 0.0, torch.zeros((), dtype=torch.int64, device=logprobs.device)


@dataclass(frozen=True)
class Pairwise:
    """A loss of pairs; log-probabilities are [chosen, rejected] pair after pair."""

    model: ReplyModel
    settings: LossConfig

    def collate(self, items: Sequence[tuple[PairExample, bool]]) -> Batch:
        """A batch of pairs."""
        return {
            **_batch(self.model, items),
            "reference": torch.tensor([example.reference or (0.0, 0.0) for example, _ in items]),
            "preference": torch.tensor([example.preference for example, _ in items]),
        }

    def before_update(self, model: torch.nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
        """Adds the reference's log-probabilities, if they are those of the model below the adapters. Collective."""
        if self.model.uses_adapter:
            for batch in batches:
                batch["reference"] = self.model.sums(model, batch, device, reference=True).view(-1, 2)
            end_prefetch(model)

    def loss(self, logprobs: torch.Tensor, batch: Batch) -> SumAndCount:
        """Over the pairs that count."""
        if not batch["count"]:
            return _nothing(logprobs)
        policy, lengths = reply_sums(logprobs, batch["lengths"]).view(-1, 2), batch["lengths"].view(-1, 2)
        return pair_loss(self.settings, policy, batch["reference"], lengths, batch["preference"])

    def tallies(self, logprobs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of right pairs, a tie as half of one, and sums of margins and rewards."""
        policy, lengths = reply_sums(logprobs, batch["lengths"]).view(-1, 2), batch["lengths"].view(-1, 2)
        ratios = log_ratios(self.settings, policy, batch["reference"], lengths) * (batch["count"] > 0)
        chosen, rejected = rewards(self.settings, ratios).unbind(1)
        return {
            "accuracy": ((chosen - rejected).sign() + 1).sum() / 2 * (batch["count"] > 0),
            "margin": (chosen - rejected).sum(),
            "reward_chosen": chosen.sum(),
            "reward_rejected": rejected.sum(),
        }


@dataclass(frozen=True)
class Thumbs:
    """KTO of single replies. The baseline is that of the whole update, over ranks and micro-batches."""

    model: ReplyModel
    settings: LossConfig

    def collate(self, items: Sequence[tuple[ThumbExample, bool]]) -> Batch:
        """A batch of replies, and as `mismatched` their prompts with other replies."""
        return {
            **_batch(self.model, items),
            "mismatched": self.model.collate([example.mismatched for example, _ in items]),
            "reference": torch.tensor([example.reference or (0.0, 0.0) for example, _ in items]),
            "liked": torch.tensor([example.liked for example, _ in items]),
        }

    def before_update(self, model: torch.nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
        """Adds the update's baseline to its batches, and the reference's log-probabilities if need be. Collective."""
        ratios_and_count = torch.zeros(2, dtype=torch.float64, device=device)
        for batch in batches:
            if self.model.uses_adapter:
                sides = [self.model.sums(model, part, device, reference=True) for part in (batch, batch["mismatched"])]
                batch["reference"] = torch.stack(sides, 1)
            ratios = self.model.sums(model, batch["mismatched"], device) - batch["reference"][:, 1].to(device)
            if batch["count"]:
                ratios_and_count += torch.stack([ratios.double().sum(), ratios.new_tensor(len(ratios)).double()])
        end_prefetch(model)
        baseline = kto_baseline(sum_over_ranks(ratios_and_count))
        for batch in batches:
            batch["baseline"] = baseline

    def loss(self, logprobs: torch.Tensor, batch: Batch) -> SumAndCount:
        """Over the replies that count."""
        if not batch["count"]:
            return _nothing(logprobs)
        return thumb_loss(self.settings, self._ratios(logprobs, batch), batch["liked"], batch["baseline"])

    def tallies(self, logprobs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Number of replies on their side of the baseline, and the sum of baselines, which estimate the KL."""
        above = self._ratios(logprobs, batch) > batch["baseline"]
        return {
            "label_accuracy": (above == batch["liked"]).sum() * (batch["count"] > 0),
            "kl": batch["baseline"] * batch["items"],
        }

    def _ratios(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return reply_sums(logprobs, batch["lengths"]) - batch["reference"][:, 0]
