"""Evaluations on held-out pairs and thumbs: on every rank, from sums, each row once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from lmgym.data.batching import batches_of_rank, length_batches
from lmgym.distributed.ranks import rank, sum_over_ranks, world_size
from lmgym.statistics import auc, share
from lmgym.text import Replies
from lmgym.training.length_rule import LengthRule
from lmgym.training.probes import Probe, Report
from preferences.config import LossConfig
from preferences.examples import PairExample, RepliesOf, ThumbExample
from preferences.losses import kto_baseline
from preferences.objectives import ReplyModel
from preferences.rewards import log_ratios, pair_loss, rewards, thumb_loss


class HeldOut(Probe, Protocol):
    """The probe of a run's held-out rows, whose rewards are saved."""

    def lines(self) -> Iterator[dict[str, Any]]:
        """A line of scores.jsonl a row."""


class Forwards:
    """Summed log-probabilities of a fixed set of replies, distributed over the ranks."""

    def __init__(self, rows: Sequence[Replies], model: ReplyModel, batch_tokens: int) -> None:
        self.rows, self.model = rows, model
        lengths, tokens = [], []
        for row in rows:
            lengths.append([len(suffix) for suffix in row.suffixes])
            tokens.append(row.tokens)
        counts = np.array([len(of_row) for of_row in lengths])
        self.places = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
        self.lengths = torch.tensor([length for of_row in lengths for length in of_row])
        self.batches = length_batches(tokens, batch_tokens)

    def sums(
        self, model: torch.nn.Module, device: torch.device, reference: bool = False, heartbeat=lambda: None
    ) -> torch.Tensor:
        """[replies] float64 on the CPU, on every rank; `reference` as in `ReplyModel.sums`. Collective."""
        found = torch.zeros(len(self.lengths), dtype=torch.float64, device=device)
        for rows, counts in batches_of_rank(self.batches, world_size(), rank()):
            heartbeat()
            sums = self.model.sums(model, self.model.collate([self.rows[i] for i in rows]), device, reference)
            if counts:
                found[torch.from_numpy(np.concatenate([self.places[i] for i in rows])).to(device)] = sums.double()
        return sum_over_ranks(found).cpu()


class _Measured:
    """Held-out examples with the policy's and the reference's log-probabilities of all their replies."""

    def __init__(self, examples: Sequence[Any], model: ReplyModel, batch_tokens: int) -> None:
        self.examples, self.model = examples, model
        self.forwards = Forwards(RepliesOf(examples), model, batch_tokens)
        self.lengths = self.forwards.lengths.view(-1, 2)
        given = [example.reference or (0.0, 0.0) for example in examples]
        self.reference: torch.Tensor | None = None
        if not model.uses_adapter:
            self.reference = torch.tensor(given, dtype=torch.float64)

    def sums(self, model: torch.nn.Module, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """(the policy's, the reference's), [examples, 2] each. Collective."""
        if self.reference is None:  # it does not change
            self.reference = self.forwards.sums(model, device, reference=True).view(-1, 2)
        return self.forwards.sums(model, device).view(-1, 2), self.reference


class PairProbe:
    """The loss, the accuracy of implicit rewards with its interval, and the rewards of both sides."""

    loss = "loss"
    others: Mapping[str, str] = {
        "loss": "loss of a pair",
        "margin": "margin of the implicit rewards",
        "reward_chosen": "reward of the chosen replies",
        "reward_rejected": "reward of the rejected replies",
        "logprob_chosen": "log-probability of a token, chosen",
        "logprob_rejected": "log-probability of a token, rejected",
    }

    def __init__(
        self,
        examples: Sequence[PairExample],
        model: ReplyModel,
        settings: LossConfig,
        batch_tokens: int,
        rule: LengthRule,
    ) -> None:
        self.examples, self.settings, self.rule = examples, settings, rule
        accuracy = {"accuracy": "accuracy of the implicit reward"}
        self.shown: Mapping[str, str] = {**accuracy, **rule.shown, **self.others}
        self.measured = _Measured(examples, model, batch_tokens)
        self.preference = torch.tensor([example.preference for example in examples], dtype=torch.float64)
        self.prompts = np.unique([example.prompt for example in examples], return_inverse=True)[1]
        self.rewards = np.zeros((len(examples), 2))
        self.report = Report({}, {})

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """A tie is half right: before step 1 all pairs tie. The interval is over prompts."""
        policy, reference = self.measured.sums(model, device)
        lengths = self.measured.lengths
        total, count = pair_loss(self.settings, policy, reference, lengths, self.preference)
        self.rewards = rewards(self.settings, log_ratios(self.settings, policy, reference, lengths)).numpy()
        chosen, rejected = self.rewards.T
        right, means = (np.sign(chosen - rejected) + 1) / 2, (policy / lengths).mean(0).tolist()
        accuracy = Report.of("accuracy", share(right, self.prompts), "prompt")
        metrics = {
            "loss": float(total) / int(count),
            **accuracy.metrics,
            "margin": float((chosen - rejected).mean()),
            "reward_chosen": float(chosen.mean()),
            "reward_rejected": float(rejected.mean()),
            "logprob_chosen": means[0],
            "logprob_rejected": means[1],
        }
        found = replace(accuracy, metrics=metrics)
        self.report = self.rule.added_to(found, right, lengths.numpy(), self.prompts)
        return self.report.metrics

    def lines(self) -> Iterator[dict[str, Any]]:
        """The two rewards of each pair; lengths are in tokens, without the eos."""
        lengths = (self.measured.lengths - 1).tolist()
        for example, (chosen, rejected), both in zip(self.examples, self.rewards.tolist(), lengths, strict=True):
            yield {
                "prompt": example.prompt,
                "row": example.origin,
                "chosen": chosen,
                "rejected": rejected,
                "lengths": both,
            }


class ThumbProbe:
    """The loss, how well implicit rewards tell liked from disliked replies, and the KL's estimate."""

    loss = "loss"
    shown: Mapping[str, str] = {
        "auc": "AUC of the implicit reward",
        "loss": "loss of a reply",
        "margin": "margin of the implicit rewards",
        "reward_liked": "reward of the liked replies",
        "reward_disliked": "reward of the disliked replies",
        "kl": "estimate of the KL to the reference (z0)",
    }

    def __init__(
        self, examples: Sequence[ThumbExample], model: ReplyModel, settings: LossConfig, batch_tokens: int
    ) -> None:
        self.examples, self.settings = examples, settings
        self.measured = _Measured(examples, model, batch_tokens)
        self.liked = np.array([example.liked for example in examples])
        self.rewards = np.zeros(len(examples))
        self.report = Report({}, {})

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """The baseline is the one of all held-out replies."""
        policy, reference = self.measured.sums(model, device)
        ratios, mismatched = (policy - reference).unbind(1)
        baseline = kto_baseline(torch.tensor([float(mismatched.sum()), len(mismatched)], dtype=torch.float64))
        total, count = thumb_loss(self.settings, ratios, torch.from_numpy(self.liked), baseline)
        self.rewards = rewards(self.settings, ratios).numpy()
        metrics, undefined = {"loss": float(total) / int(count), "kl": float(baseline)}, {}
        notes: tuple[str, ...] = ()
        if 0 < self.liked.sum() < len(self.liked):
            sides = float(self.rewards[self.liked].mean()), float(self.rewards[~self.liked].mean())
            area = Report.of("auc", auc(self.rewards, self.liked, [one.prompt for one in self.examples]), "prompt")
            metrics |= {**area.metrics, "margin": sides[0] - sides[1]}
            notes = area.notes
            metrics |= {"reward_liked": sides[0], "reward_disliked": sides[1]}
        else:
            why = f"all {len(self.liked)} held-out replies are {'liked' if self.liked[0] else 'disliked'}"
            undefined = dict.fromkeys(("auc", "margin", "reward_liked", "reward_disliked"), why)
        self.report = Report(metrics, undefined, notes)
        return metrics

    def lines(self) -> Iterator[dict[str, Any]]:
        """The reward and the label of each reply."""
        for example, reward in zip(self.examples, self.rewards.tolist(), strict=True):
            yield {"prompt": example.prompt, "row": example.origin, "score": reward, "liked": int(example.liked)}
