"""Evaluations during training: on every rank (a sharded forward is collective), from sums, data loaded once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from lmgym.data.batching import batches_of_rank, length_batches
from lmgym.distributed.ranks import rank, sum_over_ranks, world_size
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.scoring.scorers import Reduce, reduce_logits
from lmgym.text import Replies
from lmgym.training.length_rule import LengthRule
from lmgym.training.probes import Probe, Report
from reward_models.data import PairExample, pair_lengths
from reward_models.losses import plackett_luce
from reward_models.metrics.evaluations import EvaluationSet
from reward_models.metrics.figures import Metrics
from reward_models.metrics.member_metrics import member_metrics
from reward_models.metrics.pair_metrics import pair_metrics, temperature_metrics
from reward_models.metrics.rankings import human_ranking
from reward_models.objectives import RankedExample


class HeldOut(Probe, Protocol):
    """The probe of a run's own held-out examples, whose scores are saved."""

    scores: np.ndarray

    def lines(self) -> Iterator[dict[str, Any]]:
        """A line of scores.jsonl an example."""


class Forwards:
    """Forward passes over a fixed set of rows, distributed over the ranks."""

    def __init__(self, rows: Sequence[Replies], model: ScoringModel, pad_id: int, batch_tokens: int) -> None:
        self.rows, self.scoring, self.pad_id = rows, model, pad_id
        suffixes = np.array([len(row.suffixes) for row in rows])
        self.firsts = np.cumsum(suffixes) - suffixes
        self.suffixes, self.replies = suffixes, int(suffixes.sum())
        self.batches = length_batches([row.tokens for row in rows], batch_tokens)

    def logits(self, model: torch.nn.Module, device: torch.device) -> torch.Tensor:
        """[replies, labels] in float64 on the CPU, in the rows' order, on every rank. Collective."""
        logits: torch.Tensor | None = None
        for batch, counts in batches_of_rank(self.batches, world_size(), rank()):
            inputs = self.scoring.collate([self.rows[i] for i in batch], self.pad_id)
            with torch.no_grad():
                found = model(**{name: value.to(device) for name, value in inputs.items()}).double()
            if logits is None:
                logits = found.new_zeros(self.replies, found.shape[1])
            if counts:
                places = [np.arange(self.firsts[i], self.firsts[i] + self.suffixes[i]) for i in batch]
                logits[torch.from_numpy(np.concatenate(places)).to(device)] = found
        assert logits is not None, "a probe has rows"
        return sum_over_ranks(logits).cpu()


def scores_of(logits: torch.Tensor, reduce: Reduce) -> np.ndarray:
    """[rows] scores as a scorer gives them: reduced in fp32."""
    return reduce_logits(logits.float(), reduce).double().numpy()


def report_of(metrics: Metrics, *left_out: str) -> Report:
    """Defined figures, and the reasons of the others; rows that were left out are given as reason of `rows`."""
    defined = {name: value for name, value in metrics.items() if value is not None}
    notes = {"rows": "; ".join(left_out)} if any(left_out) else {}
    return Report(defined, {**metrics.reasons, **notes}, metrics.notes)


def joined(*reports: Report) -> Report:
    """One report of several on the same examples."""
    metrics = {name: value for report in reports for name, value in report.metrics.items()}
    undefined = {name: why for report in reports for name, why in report.undefined.items()}
    return Report(metrics, undefined, tuple(note for report in reports for note in report.notes))


class PairProbe:
    """Accuracy, beside that of length alone, calibration and length bias on held-out pairs."""

    loss = "nll"
    others: Mapping[str, str] = {
        "nll": "loss (nats per pair)",
        "margin_mean": "mean margin, chosen above rejected",
        "ece": "calibration error (ECE)",
        "brier": "Brier score",
        "temperature": "temperature, fitted on these pairs",
        "ece_calibrated": "calibration error at the temperature of other prompts",
        "score_length_correlation": "correlation of score and reply length",
        "accuracy_longer_rejected": "accuracy where the longer reply was rejected",
    }
    of_heads: Mapping[str, str] = {
        "member_error_correlation": "correlation of the heads' errors",
        "spread": "spread of the heads' scores",
        "spread_error_spearman": "rank correlation of the heads' spread and the error",
    }

    def __init__(
        self,
        examples: Sequence[PairExample],
        model: ScoringModel,
        pad_id: int,
        batch_tokens: int,
        rule: LengthRule,
    ) -> None:
        self.examples, self.rule = examples, rule
        self.shown: Mapping[str, str] = {"accuracy": "accuracy of pairs", **rule.shown, **self.others, **self.of_heads}
        self.forwards = Forwards([example.replies for example in examples], model, pad_id, batch_tokens)
        self.report = Report({}, {})
        self.scores = np.zeros((len(examples), 2))
        self.means: list[float] = []
        """of each head's scores, which are subtracted; empty for a single head"""

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """Accuracy with its interval, margin, calibration and length bias over all pairs, each counted once.

        The scores are means over the heads, each less its own mean over these replies, as a scorer gives them.
        """
        logits = self.forwards.logits(model, device).numpy()
        heads = logits.shape[1]
        if heads > 1:
            self.means = logits.mean(0).tolist()
            logits = logits - self.means
        self.scores = logits.mean(1).reshape(-1, 2)
        lengths, prompts = pair_lengths(self.examples), np.array([example.prompt for example in self.examples])
        chosen, rejected = self.scores.T
        found = pair_metrics(chosen, rejected, prompts, lengths[:, 0], lengths[:, 1])
        found = joined(found, temperature_metrics(chosen, rejected, prompts))
        if heads > 1:
            found = joined(found, member_metrics(logits[0::2].T, logits[1::2].T))
        self.report = self.rule.added_to(found, chosen > rejected, lengths, prompts)
        return self.report.metrics

    def lines(self) -> Iterator[dict[str, Any]]:
        """The two scores of each pair."""
        for example, (chosen, rejected) in zip(self.examples, self.scores.tolist(), strict=True):
            scores = {"chosen": chosen, "rejected": rejected, "lengths": example.lengths}
            yield {"prompt": example.prompt, "row": example.origin, **scores}


class RankingProbe:
    """Agreement with people's rankings of held-out groups."""

    loss = "loss"
    shown: Mapping[str, str] = {
        "top_1_acc": "best reply found",
        "loss": "Plackett-Luce loss (nats per group)",
        "kendall_tau": "Kendall tau with people's ranking",
        "top_2_acc": "top two as people's",
    }

    def __init__(self, examples: Sequence[RankedExample], model: ScoringModel, pad_id: int, batch_tokens: int) -> None:
        self.examples = examples
        self.forwards = Forwards([example.replies for example in examples], model, pad_id, batch_tokens)
        self.group = np.repeat(np.arange(len(examples)), self.forwards.suffixes)
        self.ranks = np.concatenate([example.ranks for example in examples])
        self.report = Report({}, {})
        self.scores = np.zeros(len(self.group))

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """The share of groups whose best reply has the highest score, and agreement with the whole ranking."""
        self.scores = scores_of(self.forwards.logits(model, device), "logit")
        metrics = human_ranking(self.scores, self.ranks, self.group)
        # sorted by group and, within it, the highest score first; among equal scores the worst reply: a tie is no find
        order = np.lexsort((-self.ranks, -self.scores, self.group))
        best = np.minimum.reduceat(self.ranks, self.forwards.firsts)
        metrics.add("top_1_acc", float((self.ranks[order][self.forwards.firsts] == best).mean()))
        metrics.add("loss", self._loss())
        self.report = report_of(metrics)
        return self.report.metrics

    def _loss(self) -> float:
        """The training loss, as a mean over the groups."""
        suffixes = torch.from_numpy(self.forwards.suffixes)
        exists = torch.arange(int(suffixes.max())) < suffixes[:, None]
        scores, ranks = torch.zeros(exists.shape), torch.ones(exists.shape, dtype=torch.int64)
        scores[exists] = torch.from_numpy(self.scores).float()
        ranks[exists] = torch.from_numpy(self.ranks)
        total, count = plackett_luce(scores, ranks, exists)
        return float(total) / int(count)

    def lines(self) -> Iterator[dict[str, Any]]:
        """The scores and ranks of each group."""
        for example, scores in zip(self.examples, np.split(self.scores, self.forwards.firsts[1:]), strict=True):
            yield {"prompt": example.prompt, "row": example.origin, "scores": scores.tolist(), "ranks": example.ranks}


class TranscriptProbe:
    """Metrics of an evaluation set."""

    loss = ""

    def __init__(
        self, rows: EvaluationSet, model: ScoringModel, pad_id: int, batch_tokens: int, reduce: Reduce
    ) -> None:
        self.rows, self.reduce = rows, reduce
        self.forwards = Forwards(rows.replies, model, pad_id, batch_tokens)
        self.report = Report({}, {})
        self.shown = rows.evaluation.shown

    def measure(self, model: torch.nn.Module, device: torch.device) -> dict[str, float]:
        """The set's own metrics of the reduced score."""
        scores = scores_of(self.forwards.logits(model, device), self.reduce)
        self.report = report_of(self.rows.evaluation.measure(scores, self.rows.columns), self.rows.left_out)
        return self.report.metrics
