"""Updates of the weights: epochs of minibatches over an iteration's rollouts, for any loss function."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch

from lmgym.config import OptimizerConfig
from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.ranks import first_non_finite, rank, sum_over_ranks, world_size
from ppo.algorithms.methods import Algorithm
from ppo.config import MethodConfig
from ppo.rollouts import Rollouts, RowBatch, minibatches


class Recorded(NamedTuple):
    """A micro-batch's numbers from before the updates, [1, M] each."""

    logprobs: torch.Tensor | None
    """None: those of the micro-batch's own forward, in an iteration of a single update"""
    advantages: torch.Tensor
    values: torch.Tensor
    returns: torch.Tensor
    reference: torch.Tensor | None
    """None if it did not run"""
    correction: torch.Tensor
    """weights of the sampler's correction"""
    mask: torch.Tensor
    """tokens that have loss"""
    weights: torch.Tensor
    """by which the policy's losses are added up: the sum is divided by the update's tokens"""
    rows: torch.Tensor
    """[M] int64: number of each token's reply"""
    replies: int
    kl_coef: float
    """of the KL in the loss"""


Outputs = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""of a forward: log-probabilities, values and entropies, [M] each, or None where it computed none"""


class LossTerms(NamedTuple):
    """Sums over the tokens of a micro-batch: what is minimised, and what is logged (detached)."""

    policy: torch.Tensor | None
    value: torch.Tensor | None
    metrics: dict[str, torch.Tensor]


LossFunction = Callable[[torch.Tensor | None, torch.Tensor | None, Recorded, torch.Tensor | None], LossTerms]
"""of the policy's log-probabilities, the critic's values and the policy's entropies (None without `entropy_coef`),
[1, M] each; one of the first two is None in a pass of the other alone. `approx_kl` among the metrics ends the epochs at
`stop_kl`"""
NonFinite = Callable[[int, str, list[str]], None]
"""ends the run, given the update, what was not finite, and the episodes"""
Inspect = Callable[[torch.Tensor, torch.Tensor], None]
"""receives the indices among the M tokens of an iteration's first update, and their log-probabilities in its forward,
before a weight changes. Collective"""
Split = Callable[[int, int, int, int, Sequence[int]], list[np.ndarray]]
"""an epoch's minibatches, as `ppo.rollouts.minibatches` makes them; the seed is (seed, iteration, epoch)"""


@dataclass(frozen=True)
class Learned:
    """Means per token over the updates of an iteration, all ranks."""

    means: dict[str, float]
    curve: list[dict[str, float]]
    """the same of each update"""
    stopped_early: bool
    rate: float
    """the last learning rate"""
    skipped: int
    """updates that left the weights unchanged: in fp16 DeepSpeed lowers its loss scale instead"""


@final
class Learner:
    """Makes updates. `rate(update)` is the learning rate of each; `begin(update)` is called before each."""

    def __init__(
        self,
        algorithm: Algorithm,
        method: MethodConfig,
        optimizer: OptimizerConfig,
        precision: str,
        max_new_tokens: int,
        engine: TrainingEngine,
        loss: LossFunction,
        rate: Callable[[int], float],
        device: torch.device,
        non_finite: NonFinite,
        begin: Callable[[int], None] = lambda _: None,
        split: Split = minibatches,
    ) -> None:
        self.algorithm, self.method, self.optimizer = algorithm, method, optimizer
        self.precision, self.max_new_tokens = precision, max_new_tokens
        self.engine, self.loss, self.rate, self.device = engine, loss, rate, device
        self.non_finite, self.begin, self.split = non_finite, begin, split
        self._inspect: Inspect | None = None
        self._seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        """an update's tokens, among the M, and their log-probabilities, on the device"""

    def learn(
        self, rollouts: Rollouts, iteration: int, update: int, inspect: Inspect | None = None, critic_only=False
    ) -> Learned:
        """Run all epochs over an iteration's rollouts, starting at optimizer update number `update`. Collective."""
        method = self.method
        updates: list[dict[str, torch.Tensor]] = []
        stopped, skipped, self._inspect = False, 0, inspect
        for episodes in self._minibatches(rollouts, iteration):
            self.begin(update)
            sums, stepped = self._update(rollouts, episodes, update, critic_only)
            updates.append(sums)
            skipped += not stepped
            update, self._inspect = update + 1, None
            drift = sums.get("approx_kl")
            if method.stop_kl > 0 and drift is not None and drift / sums["tokens"].clamp(min=1) > method.stop_kl:
                stopped = True
                break
        names = [name for name in updates[0] if name != "tokens"]
        table = torch.stack([torch.stack([sums[name] for name in names]) for sums in updates])
        tokens = torch.stack([sums["tokens"] for sums in updates]).clamp(min=1)
        means = (table.sum(0) / tokens.sum()).tolist()
        curve = [dict(zip(names, row, strict=True)) for row in (table / tokens[:, None]).tolist()]
        return Learned(dict(zip(names, means, strict=True)), curve, stopped, self.rate(update - 1), skipped)

    def _minibatches(self, rollouts: Rollouts, iteration: int) -> Iterator[np.ndarray]:
        """The episodes of each update."""
        for epoch in range(self.algorithm.ppo_epochs):
            seed = (self.optimizer.seed, iteration, epoch)
            yield from self.split(rollouts.episodes, self.optimizer.global_batch, rank(), world_size(), seed)

    def _update(
        self, rollouts: Rollouts, episodes: np.ndarray, update: int, critic_only: bool
    ) -> tuple[dict[str, torch.Tensor], bool]:
        """One optimizer update: the metrics' sums in float64 over all ranks; False if the step was skipped."""
        rows = np.flatnonzero(np.isin(rollouts.episode_of_row, episodes))
        optimizer = self.optimizer
        batches = rollouts.tree.batches(rows, optimizer.micro_batch, optimizer.tokens_per_micro_batch)
        batches = batches or [np.zeros(0, dtype=np.int64)]  # of agents that did not act
        replies = rollouts.row_has_loss[rows].sum()
        learned = rollouts.loss_mask[rollouts.token_indices(rows)].sum()
        tokens, replies = sum_over_ranks(torch.stack([learned, torch.as_tensor(replies)]).double())
        per_reply = (tokens / replies.clamp(min=1)).item()
        # gradients are averaged over ranks, and the loss is a mean over the tokens of all ranks
        scale = world_size() / max(tokens.item(), 1.0)
        self.engine.set_learning_rate(self.rate(update), freeze=critic_only)
        sums: dict[str, torch.Tensor] = {}
        losses: list[tuple[torch.Tensor, np.ndarray]] = []
        self._seen = []
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            metrics = self._accumulate(rollouts, batch, scale, per_reply, critic_only, last, losses)
            sums = {name: sums.get(name, 0.0) + value.double() for name, value in metrics.items()}
        self._show(rollouts)
        self._refuse_non_finite(losses, update, rollouts)
        stepped = self.engine.step()
        # in fp16 gradients overflow by design: DeepSpeed lowers its loss scale, and raises when it cannot
        if not stepped and self.precision != "fp16":
            self.non_finite(update, "a gradient that is not finite", _names(rollouts, rows))
        summed = sum_over_ranks(torch.stack([*sums.values()]))
        return {**dict(zip(sums, summed, strict=True)), "tokens": tokens.to(summed)}, stepped

    def _accumulate(
        self,
        rollouts: Rollouts,
        rows: np.ndarray,
        scale: float,
        per_reply: float,
        critic_only: bool,
        last: bool,
        losses: list[tuple[torch.Tensor, np.ndarray]],
    ) -> dict[str, torch.Tensor]:
        """Forward and backward of a micro-batch; its metrics, on the device. Appends each loss with its rows to
        `losses`: nothing here waits for the device.
        """
        batch = RowBatch.of(rollouts, rows, self.device)
        recorded = self._recorded(rollouts, batch, per_reply, has_loss=bool(len(rows)))
        metrics: dict[str, torch.Tensor] = {}
        for (logprobs, values, entropies), is_final in self._passes(rollouts, batch, critic_only):
            if logprobs is not None:
                shown = len(logprobs) if len(rows) else 0
                self._seen.append((batch.tokens[:shown], logprobs.detach()[:shown]))
            terms = self.loss(
                None if logprobs is None else logprobs[None],
                None if values is None else values[None],
                recorded,
                None if entropies is None else entropies[None],
            )
            metrics |= terms.metrics
            # under ZeRO the loss must reach every weight that is trained: a factor, not a branch
            loss = torch.zeros((), device=self.device)
            if terms.policy is not None:
                loss = loss + (0.0 if critic_only else 1.0) * terms.policy
            if terms.value is not None:
                loss = loss + terms.value
            loss = loss * scale
            losses.append((loss.detach(), batch.indices))
            self.engine.backward(loss, last and is_final)
        return metrics

    def _show(self, rollouts: Rollouts) -> None:
        """Give the log-probabilities of the iteration's first update to `inspect`; they are the old ones where nothing
        computed those before. Waits for the device.
        """
        if self._inspect is None and len(rollouts.old_logprobs):
            return
        tokens, logprobs = (torch.cat(parts).cpu() for parts in zip(*self._seen, strict=True))
        if not len(rollouts.old_logprobs):
            rollouts.old_logprobs = torch.empty_like(rollouts.sampler_logprobs).index_copy(0, tokens, logprobs)
        if self._inspect is not None:
            self._inspect(tokens, logprobs)

    def _recorded(self, rollouts: Rollouts, batch: RowBatch, per_reply: float, has_loss: bool) -> Recorded:
        """The recorded numbers of a batch's tokens, on the device; a stand-in row has no loss."""

        def here(flat: torch.Tensor) -> torch.Tensor:
            return flat.to(self.device, non_blocking=True)

        def of_batch(flat: torch.Tensor) -> torch.Tensor:
            return here(flat[batch.tokens])[None]

        lengths = torch.from_numpy(rollouts.reply_lengths[batch.indices])
        weights = torch.ones(len(lengths))  # by reply
        match self.algorithm.loss_aggregation:
            case "sequence":
                weights = per_reply / lengths
            case "constant":
                weights *= per_reply / (1 if rollouts.choices else self.max_new_tokens)
        rows = torch.arange(len(lengths)).repeat_interleave(lengths)
        return Recorded(
            logprobs=of_batch(rollouts.old_logprobs) if len(rollouts.old_logprobs) else None,
            advantages=of_batch(rollouts.advantages),
            values=of_batch(rollouts.values),
            returns=of_batch(rollouts.returns),
            reference=of_batch(rollouts.reference_logprobs) if len(rollouts.reference_logprobs) else None,
            correction=of_batch(rollouts.correction),
            mask=of_batch(rollouts.loss_mask) & has_loss,
            weights=here(weights[rows])[None],
            rows=here(rows),
            replies=len(lengths),
            kl_coef=rollouts.kl_coef,
        )

    def _passes(self, rollouts: Rollouts, batch: RowBatch, critic_only: bool) -> Iterator[tuple[Outputs, bool]]:
        """Outputs for a batch, and whether they are its last: from one forward, or, for a separate critic and an
        engine that allows it, from two, so that only one model's activations are in memory at a time.
        """
        states = None
        if rollouts.frozen_states is not None:
            states = torch.cat([rollouts.frozen_states[segment] for segment in batch.segments])
        entropies = self.method.entropy_coef > 0
        if self.engine.module.critic is None or not self.engine.allows_partial_backward:
            yield self.engine(batch.rows, batch.targets, states, detach_values=critic_only, entropies=entropies), True
            return
        yield self.engine(batch.rows, batch.targets, states, values=False, entropies=entropies), False
        yield self.engine(batch.rows), True

    def _refuse_non_finite(
        self, losses: list[tuple[torch.Tensor, np.ndarray]], update: int, rollouts: Rollouts
    ) -> None:
        """End the run, before a weight changes, if a loss of the update is not finite on any rank. Collective."""
        number = first_non_finite([loss for loss, _ in losses])
        if number is not None:
            value = losses[number][0].item()
            what = "" if math.isfinite(value) else f"a loss of {value}"
            self.non_finite(update, what, _names(rollouts, losses[number][1]))


def _names(rollouts: Rollouts, rows: np.ndarray) -> list[str]:
    return [f"episode {rollouts.episode_of_row[i]} of this rank, {len(rollouts.rows[i])} tokens" for i in rows]
