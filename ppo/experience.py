"""Experience: log-probabilities of policy and reference, and values, of rollouts before any update.

The frozen layers run once per iteration: their states serve policy, values, reference and every epoch.
"""

from dataclasses import dataclass
from typing import final

import torch

from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.ranks import max_over_ranks, sum_over_ranks
from lmgym.models.config_fields import width
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.models.memory import GIB
from ppo.actor_critic import ActorCritic, Reference, without_adapters
from ppo.algorithms.losses import sampler_weights
from ppo.config import PPOConfig
from ppo.rollouts import Rollouts, RowBatch, similar_batches

ROWS_AT_ONCE = 4  # micro-batches per forward: no activations are kept for a backward


@dataclass(frozen=True)
class LogprobMismatch:
    """Absolute differences between the sampler's and the trainer's log-probabilities, nats per token, all ranks."""

    mean: float
    largest: float
    tokens: int


@final
class Experience:
    """Computes log-probabilities and values. All calls are collective."""

    def __init__(
        self, config: PPOConfig, engine: TrainingEngine, reference: Reference | None, device: torch.device
    ) -> None:
        self.config, self.engine, self.reference, self.device = config, engine, reference, device
        self.actor: ActorCritic = engine.module  # type: ignore[assignment]
        self.batch_size = ROWS_AT_ONCE * config.optimizer.micro_batch
        self._said_no_cache = False

    @torch.no_grad()
    def measure(self, rollouts: Rollouts) -> LogprobMismatch:
        """Fill in old_logprobs, reference_logprobs, values, bootstrap and the frozen layers' states."""
        logprobs, reference, values = (torch.zeros(len(rollouts.sampler_logprobs)) for _ in range(3))
        kept: list[torch.Tensor] | None = (
            [torch.empty(0)] * len(rollouts.rows) if self._keeps_states(rollouts) else None
        )
        for rows in similar_batches(rollouts.row_tokens, self.batch_size):
            batch = RowBatch.of(rollouts, rows, self.device)
            states = self.engine(batch.rows, trunk_only=True) if self.actor.frozen_layers else None
            batch_logprobs, batch_values, _ = self.engine(batch.rows, batch.targets, states)
            batch_reference = self._reference(batch, states)
            if not len(rows):
                continue
            logprobs[batch.tokens] = batch_logprobs.cpu()
            if batch_values is not None:
                values[batch.tokens] = batch_values.cpu()
            reference[batch.tokens] = batch_reference.cpu()
            if kept is not None and states is not None:
                for i, of_row in zip(rows, states.split([rollouts.row_tokens[i] for i in rows]), strict=True):
                    kept[i] = of_row.clone()
        rollouts.old_logprobs, rollouts.reference_logprobs, rollouts.values = logprobs, reference, values
        rollouts.frozen_states, rollouts.bootstrap = kept, self._bootstraps(rollouts)
        method, lengths = self.config.method, torch.from_numpy(rollouts.reply_lengths)
        rollouts.correction = sampler_weights(
            logprobs, rollouts.sampler_logprobs, lengths, method.sampler_correction, method.sampler_cap
        )
        return _mismatch(logprobs, rollouts.sampler_logprobs)

    def _reference(self, batch: RowBatch, states: torch.Tensor | None) -> torch.Tensor:
        if self.reference is None:
            with without_adapters(self.actor):
                return self.engine(batch.rows, batch.targets, states, values=False)[0]
        bf16 = self.config.policy.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
            return self.reference.logprobs(batch.rows, batch.targets, states)

    def _bootstraps(self, rollouts: Rollouts) -> torch.Tensor:
        """[E] values of truncated episodes' next prompts."""
        found, rows = torch.zeros(rollouts.episodes), rollouts.final_rows
        if not self.config.algorithm.has_critic:
            return found
        for chosen in similar_batches([len(row) for row in rows], self.batch_size):
            packed = pack_last_tokens([rows[i] for i in chosen] or [rollouts.rows[0]])
            _, values, _ = self.engine(packed.to(self.device))
            if len(chosen):
                found[torch.from_numpy(rollouts.final_episodes[chosen])] = values.cpu()
        return found

    def _keeps_states(self, rollouts: Rollouts) -> bool:
        """True on all ranks or on none: under ZeRO-3, running frozen layers again is collective."""
        return self.actor.frozen_layers > 0 and self._states_gib(rollouts) <= self.config.rollout.frozen_cache_gb

    def _states_gib(self, rollouts: Rollouts) -> float:
        """Size in fp32 of the frozen layers' states of all rows, on the rank that has most. Collective."""
        size = sum(rollouts.row_tokens) * width(self.actor.config) * 4 / GIB
        return max_over_ranks(torch.tensor(size, dtype=torch.float64)).item()

    def cache_notes(self, rollouts: Rollouts) -> list[str]:
        """A line the first time that the frozen layers' states are too large to keep. Collective."""
        if not self.actor.frozen_layers or self._said_no_cache or rollouts.frozen_states is not None:
            return []
        size = self._states_gib(rollouts)
        if size <= self.config.rollout.frozen_cache_gb:
            return []
        self._said_no_cache = True
        return [
            f"the frozen layers run again in every epoch: their states take {size:.2f} GiB per "
            f"iteration, --frozen_cache_gb is {self.config.rollout.frozen_cache_gb:g}"
        ]


def _mismatch(logprobs: torch.Tensor, sampled: torch.Tensor) -> LogprobMismatch:
    difference = (logprobs - sampled).abs().double().nan_to_num(float("inf"))  # NaN would hide in a maximum
    total, tokens = sum_over_ranks(torch.stack([difference.sum(), torch.tensor(float(len(sampled))).double()])).tolist()
    largest = max_over_ranks(difference.max() if len(difference) else torch.zeros((), dtype=torch.float64)).item()
    return LogprobMismatch(total / max(1.0, tokens), largest, int(tokens))
