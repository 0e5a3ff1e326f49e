"""Epochs of minibatches over an iteration's rollouts: PPO's updates."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.distributed.plain_engine import Trained
from lmgym.distributed.ranks import first_non_finite, rank, sum_over_ranks, world_size
from ppo.algorithms.losses import MOST_LOG_RATIO, clip_fraction, policy_loss, value_loss
from ppo.config import PPOConfig
from ppo.experience import Batch, most_batches
from ppo.rollouts import Rollouts, minibatches, similar_batches

SUMS = ("policy_loss", "value_loss", "approx_kl", "clipfrac", "ratio", "tokens")

NonFinite = Callable[[int, str, list[str]], None]
FirstLook = Callable[[torch.Tensor, torch.Tensor], None]
"""is shown which of the M tokens a micro-batch has, and their log-probabilities, before any weight has changed"""
Split = Callable[[int, int, int, int, Sequence[int]], list[np.ndarray]]
"""an epoch's minibatches, as `ppo.rollouts.minibatches` makes them; chance is (seed, iteration, epoch)"""


@dataclass(frozen=True)
class Learned:
    """Means a token over the updates of an iteration, all ranks; `curve` has (policy loss, value loss) an update."""

    means: dict[str, float]
    curve: list[tuple[float, float]]
    stopped_early: bool
    rate: float
    """the last learning rate"""
    skipped: int
    """updates that left the weights as they were: in fp16 DeepSpeed scales the loss down instead"""


@final
class Learner:
    """Makes updates. `rate(update)` is the learning rate of each; `non_finite` ends the run, and names the rows."""

    def __init__(
        self, config: PPOConfig, engine: Trained, rate: Callable[[int], float], device: torch.device,
        non_finite: NonFinite, heartbeat: Callable[[str], None] = lambda _: None,
        split: Split = minibatches,
    ) -> None:  # fmt: skip
        self.config, self.engine, self.rate, self.device = config, engine, rate, device
        self.non_finite, self.heartbeat, self.split = non_finite, heartbeat, split
        self._look: FirstLook | None = None

    def learn(self, rollouts: Rollouts, iteration: int, update: int, look: FirstLook | None = None) -> Learned:
        """All epochs over an iteration's rollouts, from optimizer update number `update` on. Collective.

        `look` is shown what the first update computes, and may refuse it.
        """
        method, batch = self.config.method, self.config.optimizer.global_batch
        sums: list[torch.Tensor] = []
        stopped, skipped, self._look = False, 0, look
        for epoch in range(method.ppo_epochs):
            chance = (self.config.optimizer.seed, iteration, epoch)
            for episodes in self.split(rollouts.episodes, batch, rank(), world_size(), chance):
                self.heartbeat(f"update {update + 1}")
                found, stepped = self._update(rollouts, episodes, update, iteration < method.critic_warmup)
                sums.append(found)
                skipped += not stepped
                update, self._look = update + 1, None
                kl, tokens = sums[-1][SUMS.index("approx_kl")], sums[-1][SUMS.index("tokens")]
                if 0 < method.stop_kl < kl / tokens.clamp(min=1):
                    stopped = True
                    break
            if stopped:
                break
        each = torch.stack(sums)
        tokens = each[:, SUMS.index("tokens")].clamp(min=1)
        total = each.sum(0) / tokens.sum()
        curve = [(p, v) for p, v in (each[:, :2] / tokens[:, None]).tolist()]
        means = dict(zip(SUMS[:-1], total.tolist(), strict=False))
        return Learned(means, curve, stopped, self.rate(update - 1), skipped)

    def _update(
        self, rollouts: Rollouts, episodes: np.ndarray, update: int, critic_only: bool
    ) -> tuple[torch.Tensor, bool]:
        """An optimizer update over a minibatch: its sums [len(SUMS)] in float64 over all ranks; whether it was made."""
        rows = np.flatnonzero(np.isin(rollouts.episode_of_row, episodes))
        size = self.config.optimizer.micro_batch
        batches = similar_batches([len(rollouts.rows[i]) for i in rows], size, most_batches(len(rows), size))
        trained = rollouts.trained[rollouts.places(rows)]
        count = sum_over_ranks(trained.sum().double()).item()
        self.engine.set_rate(self.rate(update), resting=critic_only)
        sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        losses: list[tuple[torch.Tensor, np.ndarray]] = []
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            sums += self._accumulate(rollouts, rows[batch], count, critic_only, last, losses)
        self._refuse_non_finite(losses, update, rollouts)
        stepped = self.engine.step()
        # in fp16 gradients overflow by design: DeepSpeed scales the loss down, and raises where it can no further
        if not stepped and self.config.policy.precision != "fp16":
            self.non_finite(update, "a gradient that is not finite", _names(rollouts, rows))
        return sum_over_ranks(sums), stepped

    def _accumulate(
        self, rollouts: Rollouts, rows: np.ndarray, count: float, critic_only: bool, last: bool,
        losses: list[tuple[torch.Tensor, np.ndarray]],
    ) -> torch.Tensor:  # fmt: skip
        """Forward and backward of a micro-batch; its sums, on the device. Without rows the first one stands in, and
        counts nothing. What was minimised goes to `losses`, with the rows that it is of: nothing here waits for it.
        """
        method = self.config.method
        batch = Batch.of(rollouts, rows, self.device)
        old, advantages, old_values, returns, mask = (
            one[batch.places].to(self.device, non_blocking=True)[None]
            for one in (rollouts.logprobs, rollouts.advantages, rollouts.values, rollouts.returns, rollouts.trained)
        )
        mask = mask & bool(len(rows))
        # gradients are averaged over ranks, and the loss is a mean over the tokens of all
        share = world_size() / max(count, 1.0)
        sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        for logprobs, values in self._passes(rollouts, batch, critic_only):
            loss = torch.zeros((), device=self.device)
            if logprobs is not None:
                if self._look is not None:
                    shown = len(logprobs) if len(rows) else 0  # nothing of what only fills up
                    self._look(batch.places[:shown], logprobs.detach()[:shown].cpu())
                policy, _ = policy_loss(logprobs[None], old, advantages, mask, method.cliprange)
                # under ZeRO a loss must reach every weight that is trained
                loss = loss + (0.0 if critic_only else 1.0) * policy
                sums += self._policy_sums(policy, logprobs[None], old, advantages, mask)
            if values is not None:
                value, _ = value_loss(values[None], old_values, returns, mask, method.cliprange_value)
                loss = loss + method.vf_coef * value
                sums[SUMS.index("value_loss")] = value.detach()
            loss = loss * share
            losses.append((loss.detach(), batch.chosen))
            self.engine.backward(loss, last and values is not None)
        return sums

    def _passes(
        self, rollouts: Rollouts, batch: Batch, critic_only: bool
    ) -> Iterator[tuple[torch.Tensor | None, torch.Tensor | None]]:
        """Log-probabilities and values [M] of a batch: both of one forward, or one after the other where the critic is
        a model of its own and the engine bears it, so that only one model's states are there for a backward.
        """
        on_trunk = self.engine.module.critic is None
        first, rollouts.forward = rollouts.forward, None
        # of all rows, sorted alike, and by the weights as they are: no update yet; a head's graph reaches the trunk
        if first is not None and not (critic_only and on_trunk):
            yield first
            return
        states = None if rollouts.states is None else torch.cat([rollouts.states[i] for i in batch.chosen])
        if on_trunk or not self.engine.takes_parts:
            yield self.engine(batch.rows, batch.targets, states, apart=critic_only)
            return
        yield self.engine(batch.rows, batch.targets, states, values=False)
        yield self.engine(batch.rows)

    def _refuse_non_finite(
        self, losses: list[tuple[torch.Tensor, np.ndarray]], update: int, rollouts: Rollouts
    ) -> None:
        """Ends the run, before a weight changes, where a loss of the update is not finite on any rank. Collective."""
        number = first_non_finite([loss for loss, _ in losses])
        if number is not None:
            own = losses[number][0].item()
            what = "" if math.isfinite(own) else f"a loss of {own}"
            self.non_finite(update, what, _names(rollouts, losses[number][1]))

    @torch.no_grad()
    def _policy_sums(
        self, loss: torch.Tensor, logprobs: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor,
        mask: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """What an update logs of the policy, [len(SUMS)], of [1, M] each."""
        log_ratio = torch.where(mask, logprobs - old, 0.0).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)
        clipped, tokens = clip_fraction(logprobs, old, advantages, mask, self.config.method.cliprange)
        drift = (log_ratio.expm1() - log_ratio).sum()  # k3 of the policy that sampled to the one that learns
        ratio = (log_ratio.exp() * mask).sum()
        found = {"policy_loss": loss, "approx_kl": drift, "clipfrac": clipped, "ratio": ratio, "tokens": tokens}
        nothing = torch.zeros((), device=loss.device)
        return torch.stack([found.get(name, nothing).double() for name in SUMS])


def _names(rollouts: Rollouts, rows: np.ndarray) -> list[str]:
    return [f"episode {rollouts.episode_of_row[i]} of this rank, {len(rollouts.rows[i])} tokens" for i in rows]
