"""What a rollout is worth: log-probabilities, the reference's, values, rewards and advantages, before any update.

Design decisions:
- A policy that sampled in fp32 knows its log-probabilities: a first batch is computed again and compared, and where the
  gap is below GAP the sampler's own serve for the rest. Elsewhere all are computed again.
- Frozen layers run once: their states serve policy, values, reference and every epoch.
- Where the first update trains on all rows at once, its forward is the one that is computed here.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.distributed.plain_engine import Trained
from lmgym.distributed.ranks import max_over_ranks, sum_over_ranks, world_size
from lmgym.models.config_fields import width
from lmgym.models.forward.packed_rows import PackedRows, pack_rows
from lmgym.models.memory import GIB
from lmgym.scoring.moments import moments_of
from ppo.actor_critic import ActorCritic, Reference, without_adapters
from ppo.algorithms.advantages import gae, kl_rewards, masked_sums, whiten
from ppo.config import PPOConfig
from ppo.rollouts import Rollouts, similar_batches

GAP = 1e-4  # nats between sampler and trainer
ROWS_AT_ONCE = 4  # times a micro-batch: nothing is kept for a backward


@dataclass(frozen=True)
class LogprobMismatch:
    """How far the sampler's log-probabilities are from the policy's own, over what was compared."""

    mean: float
    largest: float
    tokens: int


@final
class Experience:
    """Computes what updates need of rollouts. All calls are collective."""

    def __init__(self, config: PPOConfig, engine: Trained, reference: Reference | None, device: torch.device) -> None:
        self.config, self.engine, self.reference, self.device = config, engine, reference, device
        self.actor: ActorCritic = engine.module  # type: ignore[assignment]
        self.size = ROWS_AT_ONCE * config.optimizer.micro_batch
        self.trusts_sampler = config.policy.precision == "fp32" and _samples_freely(config)
        self._told_no_cache = False

    @torch.no_grad()
    def measure(self, rollouts: Rollouts) -> LogprobMismatch:
        """Fills in log-probabilities, the reference's, values, bootstraps, and the frozen layers' states."""
        found = {name: torch.zeros(len(rollouts.sampler_logprobs)) for name in ("logprobs", "reference", "values")}
        found["logprobs"].copy_(rollouts.sampler_logprobs)
        rollouts.states = [torch.empty(0)] * len(rollouts.rows) if self._keeps_states(rollouts) else None
        gap, serves_twice = LogprobMismatch(0.0, 0.0, 0), self._serves_twice(rollouts)
        lengths = [len(row) for row in rollouts.rows]
        for number, rows in enumerate(similar_batches(lengths, self.size, most_batches(len(lengths), self.size))):
            again = number == 0 or not self.trusts_sampler or gap.largest > GAP
            batch = Batch.of(rollouts, rows, self.device)
            states = self.engine(batch.rows, trunk_only=True) if self.actor.frozen_layers else None
            if serves_twice:
                with torch.enable_grad():
                    rollouts.forward = self.engine(batch.rows, batch.targets, states)
                logprobs, values = (found.detach() for found in rollouts.forward)
            else:
                logprobs, values = self.engine(batch.rows, batch.targets if again else None, states)
            reference = self._reference(batch, states)
            if logprobs is not None:
                gap = _widened(gap, logprobs.cpu(), rollouts.sampler_logprobs[batch.places], len(rows))
                if len(rows):
                    found["logprobs"][batch.places] = logprobs.cpu()
            if len(rows):
                found["reference"][batch.places], found["values"][batch.places] = reference.cpu(), values.cpu()
                if rollouts.states is not None and states is not None:
                    for i, own in zip(rows, states.split(batch.rows.lengths), strict=True):
                        rollouts.states[i] = own.clone()
        rollouts.logprobs, rollouts.reference_logprobs = found["logprobs"], found["reference"]
        rollouts.values, rollouts.bootstrap = found["values"], self._bootstraps(rollouts)
        return gap

    def _serves_twice(self, rollouts: Rollouts) -> bool:
        """Whether the one forward here can be the first update's too: on each rank a micro-batch holds all that it
        trains on. DeepSpeed wants its backward at once. Collective.
        """
        whole = most_batches(len(rollouts.rows), self.config.optimizer.micro_batch) == 1
        # of a game each trained agent has an episode of its own
        one_update = self.config.optimizer.global_batch == rollouts.episodes * world_size()
        return whole and one_update and self.config.run.deepspeed is None

    def _reference(self, batch: "Batch", states: torch.Tensor | None) -> torch.Tensor:
        if self.reference is None:
            with without_adapters(self.actor):
                return self.engine(batch.rows, batch.targets, states, values=False)[0]
        bf16 = self.config.policy.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
            return self.reference.logprobs(batch.rows, batch.targets, states)

    def _bootstraps(self, rollouts: Rollouts) -> torch.Tensor:
        """[E] values at the end of what truncated episodes would have shown next."""
        found = torch.zeros(rollouts.episodes)
        rows = rollouts.final_rows
        batches = most_batches(len(rows), self.size)
        for chosen in similar_batches([len(row) for row in rows], self.size, batches):
            laid = pack_rows([rows[i] for i in chosen] or [rollouts.rows[0]], [1] * max(1, len(chosen)), skip=0)
            _, values = self.engine(laid.to(self.device))
            if len(chosen):
                found[torch.from_numpy(rollouts.final_episodes[chosen])] = values.cpu()
        return found

    def _keeps_states(self, rollouts: Rollouts) -> bool:
        """On all ranks alike: under ZeRO-3 to run frozen layers again is collective."""
        return self.actor.frozen_layers > 0 and self._most_gib(rollouts) <= self.config.rollout.cache_gb

    def _most_gib(self, rollouts: Rollouts) -> float:
        """What the frozen layers' states take on the rank that has most. Collective."""
        return max_over_ranks(torch.tensor(self._gib_of_states(rollouts), dtype=torch.float64)).item()

    def _gib_of_states(self, rollouts: Rollouts) -> float:
        """What the frozen layers' states of all rows take, in fp32."""
        return sum(map(len, rollouts.rows)) * width(self.actor.config) * 4 / GIB

    def why_no_cache(self, rollouts: Rollouts) -> list[str]:
        """A line the first time that frozen layers are run again at every use, on any rank. Collective."""
        if not self.actor.frozen_layers or self._told_no_cache or rollouts.states is not None:
            return []
        taken = self._most_gib(rollouts)
        if taken <= self.config.rollout.cache_gb:
            return []
        self._told_no_cache = True
        return [
            f"the frozen layers run again in every epoch: their states take {taken:.2f} GiB an iteration, "
            f"--cache_gb is {self.config.rollout.cache_gb:g}"
        ]


def _samples_freely(config: PPOConfig) -> bool:
    """Whether the sampler draws from the policy's own distribution."""
    r = config.rollout
    return r.top_k == 0 and r.top_p == 1 and r.repetition_penalty == 1


def _widened(gap: LogprobMismatch, logprobs: torch.Tensor, sampled: torch.Tensor, rows: int) -> LogprobMismatch:
    """The gap with one more batch, over all ranks; fillers count nothing."""
    off = (logprobs - sampled).abs().double() if rows else torch.zeros(0, dtype=torch.float64)
    off = off.nan_to_num(math.inf)  # NaN is no number's larger
    sums = sum_over_ranks(torch.tensor([off.sum().item(), float(len(off))], dtype=torch.float64))
    largest = torch.tensor(off.max().item() if len(off) else 0.0, dtype=torch.float64)
    tokens = gap.tokens + int(sums[1])
    mean = (gap.mean * gap.tokens + sums[0].item()) / max(1, tokens)
    return LogprobMismatch(mean, max(gap.largest, max_over_ranks(largest).item()), tokens)


def most_batches(rows: int, size: int) -> int:
    """The batches of the rank that has most."""
    return int(max_over_ranks(torch.tensor(-(-rows // size))))


@dataclass(frozen=True)
class Batch:
    """Some rows on the device. Without any, the first row stands in, and nothing of it is used."""

    chosen: np.ndarray
    """which of the rollouts' rows"""
    ids: list[list[int]]
    """of those rows"""
    rows: PackedRows
    targets: torch.Tensor
    places: torch.Tensor
    """which of the M tokens, on the CPU"""

    @staticmethod
    def of(rollouts: Rollouts, rows: np.ndarray, device: torch.device) -> "Batch":
        chosen = rows if len(rows) else np.zeros(1, dtype=np.int64)
        ids = [rollouts.rows[i] for i in chosen]
        laid = pack_rows(ids, [int(rollouts.counts[i]) for i in chosen])
        return Batch(
            chosen,
            ids,
            laid.to(device),
            rollouts.targets(chosen).to(device, non_blocking=True),
            rollouts.places(chosen),
        )


def reward_and_advance(rollouts: Rollouts, config: PPOConfig, kl_coef: float) -> torch.Tensor:
    """Fills in advantages and returns; the rewards [M], KL included."""
    method, mask = config.method, rollouts.mask
    logprobs, reference = rollouts.padded(rollouts.logprobs), rollouts.padded(rollouts.reference_logprobs)
    rewards = kl_rewards(logprobs, reference, rollouts.padded(rollouts.scores), mask, kl_coef)
    advantages, returns = gae(
        rewards, rollouts.padded(rollouts.values), mask, method.gamma, method.lam, rollouts.bootstrap
    )
    if method.whiten:
        trained = mask & torch.from_numpy(rollouts.kept)[:, None]
        sums = sum_over_ranks(masked_sums(advantages, trained))
        advantages = whiten(advantages, mask, moments=moments_of(sums) if sums[2] else (0.0, 1.0))
    rollouts.advantages, rollouts.returns = rollouts.flat(advantages), rollouts.flat(returns)
    return rollouts.flat(rewards)
