"""Rounds: the best and the worst reply to each prompt become a pair, and the pairs of a round its updates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from lmgym.distributed.deepspeed_engine import end_prefetch
from lmgym.distributed.ranks import all_gather_objects, rank, world_size
from lmgym.environments.groups import tasks_of_iteration
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.runs.files import read_json
from lmgym.runs.run import Run
from lmgym.text import Replies
from lmgym.training.objectives import Batch
from preferences.examples import PairExample
from preferences.iterative.check import IterativePlan
from preferences.iterative.replies import REPLIES, Answerer, Answers
from preferences.losses import SumAndCount
from preferences.objectives import Pairwise

PAIRS = "pairs.json"
ReferenceSums = Callable[[Sequence[Replies], torch.nn.Module, torch.device], torch.Tensor]
"""(rows, the model with its wrappers, device) -> [replies] summed log-probabilities by the reference; collective"""
RoundBegins = Callable[[LocalGenerator], None]
"""called before the replies of a round are sampled, with the policy that samples them"""


def folder_of(run: Run, number: int) -> Path:
    """The folder of a round."""
    return run.folder / "rounds" / f"{number:04d}"


@dataclass
class Rounds:
    """The pairs of each round, made when its first update begins."""

    plan: IterativePlan
    answerer: Answerer
    reference: ReferenceSums | None
    """None if the loss takes the reference from below the adapters, or has none"""
    run: Run
    begins: RoundBegins | None = None
    number: int = -1
    """of the present round"""
    pairs: list[PairExample] = field(default_factory=list)

    def pairs_of_update(self, update: int, model: torch.nn.Module, device: torch.device) -> list[PairExample]:
        """The pairs of an update, of all ranks; the first update of a round samples its replies. Collective."""
        config = self.plan.training.config
        number, within = divmod(update, config.updates_per_round)
        if number != self.number:
            self.pairs, self.number = self._begin(number, model, device), number
        order = np.random.default_rng([config.optimizer.seed, number]).permutation(len(self.pairs))
        order = np.resize(order, max(len(order), config.updates_per_round))  # every update has a pair
        return [self.pairs[i] for i in np.array_split(order, config.updates_per_round)[within]]

    def _begin(self, number: int, model: torch.nn.Module, device: torch.device) -> list[PairExample]:
        """Sample, score and pair. Raises InputError if all replies tie."""
        plan, config = self.plan, self.plan.training.config
        tasks, r, seed = plan.prompts.train, config.rounds, config.optimizer.seed
        chosen = tasks_of_iteration(tasks, r.prompts_per_round, number, seed)
        first = int(np.random.default_rng([seed, number, 1]).integers(2**62))
        folder = folder_of(self.run, number)
        if self.begins:
            self.begins(self.answerer.generator)
        answers = self.answerer.answer(
            [tasks[i] for i in chosen], range(len(chosen)), r.num_generations, first, folder / REPLIES, self.run
        )
        pairs = [pair for i, one in zip(chosen, answers, strict=True) if (pair := self._pair(i, one, folder))]
        if not pairs:
            raise InputError(
                f"round {number + 1}: all {r.num_generations} replies to each of {len(answers)} prompts have one "
                "score; needed: scores that differ: a higher --temperature, more --num_generations, or another scorer"
            )
        return self._with_reference(pairs, folder, model, device)

    def _pair(self, prompt: int, answers: Answers, folder: Path) -> PairExample | None:
        """The best and the worst reply; None if their scores are equal."""
        best, worst = int(np.argmax(answers.totals)), int(np.argmin(answers.totals))
        gap = answers.totals[best] - answers.totals[worst]
        if not gap or answers.ids[best] == answers.ids[worst]:
            return None
        soft = 1 / (1 + math.exp(-min(gap, 700.0)))  # scores as the logits of preferences
        return PairExample(
            answers.rows((best, worst)),
            prompt,
            self.plan.prompts.train[prompt]["prompt"],
            str(folder / REPLIES),
            answers.place + 1,
            soft if self.plan.training.config.loss.loss == "bon" else 1.0,
        )

    def _with_reference(
        self, pairs: Sequence[PairExample], folder: Path, model: torch.nn.Module, device: torch.device
    ) -> list[PairExample]:
        """The pairs with the reference's log-probabilities, which a resumed run reads from the round's file."""
        if self.reference is None:
            return list(pairs)
        file = folder / PAIRS
        known = all_gather_objects(read_json(file) if rank() == 0 and file.is_file() else None)[0]
        if known is None:
            sums = self.reference([pair.replies for pair in pairs], model, device).view(-1, 2).tolist()
            end_prefetch(model)
            known = [{"line": pair.line, "reference": both} for pair, both in zip(pairs, sums, strict=True)]
            self.run.write_json(str(file.relative_to(self.run.folder)), known)
        return [replace(pair, reference=tuple(one["reference"])) for pair, one in zip(pairs, known, strict=True)]


@dataclass(frozen=True)
class RoundPairs:
    """The objective of a run in rounds: a batch of numbers becomes one of pairs when its update begins."""

    pairwise: Pairwise
    rounds: Rounds

    def collate(self, items: Sequence[tuple[int, bool]]) -> Batch:
        """The numbers of pairs in the whole run, which say of which update a batch is."""
        return {"numbers": [number for number, _ in items]}

    def before_update(self, model: torch.nn.Module, batches: Sequence[Batch], device: torch.device) -> None:
        """Puts this rank's pairs of the update into its batches. Collective."""
        global_batch = self.rounds.plan.training.config.optimizer.global_batch
        update = batches[0]["numbers"][0] // global_batch
        pairs = self.rounds.pairs_of_update(update, model, device)
        longest_first = sorted(pairs, key=lambda pair: -pair.replies.tokens)
        for batch, part in zip(batches, np.array_split(np.arange(len(pairs)), len(batches)), strict=True):
            own = [(longest_first[i], True) for i in part[rank() :: world_size()]]
            batch |= self.pairwise.collate(own or [(longest_first[-1], False)])
        self.pairwise.before_update(model, batches, device)

    def loss(self, outputs: torch.Tensor, batch: Batch) -> SumAndCount:
        """That of the pairs."""
        return self.pairwise.loss(outputs, batch)

    def tallies(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Those of the pairs."""
        return self.pairwise.tallies(outputs, batch)
