"""Experience: log-probabilities of policy and reference, and values, of rollouts before any update.

The frozen layers run once per iteration: their states serve policy, values, reference and every epoch.
"""

import math
from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.config import OptimizerConfig
from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.ranks import max_over_ranks, sum_over_ranks, world_size
from lmgym.models.config_fields import width
from lmgym.models.forward.packed_rows import pack_last_tokens
from lmgym.models.memory import GIB
from ppo.actor_critic import ActorCritic, Reference, without_adapters
from ppo.algorithms.losses import gap_sums, sampler_weights
from ppo.algorithms.methods import Algorithm
from ppo.config import SamplerCorrection
from ppo.rollouts import Rollouts, RowBatch
from ppo.row_tree import RowTree

ROWS_AT_ONCE = 4  # micro-batches per forward: no activations are kept for a backward
FROZEN_CACHE_GIB = 2.0
"""most memory per rank for the frozen layers' states of an iteration; of more, the layers run in every epoch"""


@dataclass(frozen=True)
class LogprobMismatch:
    """Distances of the trainer's log-probabilities from the sampler's before any update, over all ranks."""

    mean: float
    """of the absolute differences, nats per token"""
    largest: float
    tokens: int
    kl: float = 0.0
    """KL(sampler || trainer), nats per token, estimated on the tokens that have loss"""
    chi_square: float = 0.0
    """of the trainer against the sampler, on the same tokens"""
    ratio: float = 1.0
    """mean of the trainer's probability over the sampler's, on the same tokens"""
    ratio_error: float = 0.0
    """its standard error; a token's ratio has mean 1 given those before it, so that tokens are uncorrelated"""
    far: float = 0.0
    """share of these tokens whose probabilities differ by a factor of 2 or more"""


@final
class Experience:
    """Computes log-probabilities and values. All calls are collective."""

    def __init__(
        self,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        precision: str,
        correction: tuple[SamplerCorrection, float],
        is_off_policy: bool,
        engine: TrainingEngine,
        reference: Reference | None,
        device: torch.device,
    ) -> None:
        """`correction` and `is_off_policy` are those of `PPOConfig`."""
        self.algorithm, self.optimizer, self.precision = algorithm, optimizer, precision
        self.correction, self.is_off_policy = correction, is_off_policy
        self.engine, self.reference, self.device = engine, reference, device
        self.actor: ActorCritic = engine.module  # type: ignore[assignment]
        self._said_no_cache = False

    @torch.no_grad()
    def measure(self, rollouts: Rollouts, compares: bool = True, shows_kl: bool = True) -> LogprobMismatch | None:
        """Fill in what the updates need of old_logprobs, reference_logprobs, values, bootstrap and the frozen layers'
        states.

        With `compares` policy and reference run in any case, and the sampler's distance is returned. Otherwise nothing
        runs whose numbers are known or not needed. None: the first update's forward shows the distance. Without
        `shows_kl` the reference runs only for a penalty.
        """
        runs_policy = compares or self._runs_policy(rollouts)
        runs_reference = compares or shows_kl or self.algorithm.init_kl_coef > 0
        recurs = runs_policy or runs_reference or self.algorithm.ppo_epochs > 1
        rollouts.shared = self.actor.decoder.packed  # padded rows compute everything
        kept: dict[int, torch.Tensor] | None = {} if recurs and self._keeps_states(rollouts) else None
        numbers = torch.zeros(3, len(rollouts.sampler_logprobs))
        if runs_policy or runs_reference or kept is not None:
            for rows in self._batches(rollouts.tree):
                self._run(rollouts, rows, numbers, kept, runs_policy, runs_reference)
        logprobs, reference, rollouts.values = numbers
        rollouts.frozen_states, rollouts.bootstrap = kept, self._bootstraps(rollouts)
        if runs_reference:
            rollouts.reference_logprobs = reference
        if runs_policy:
            rollouts.old_logprobs = logprobs
            lengths = torch.from_numpy(rollouts.reply_lengths)
            rollouts.correction = sampler_weights(logprobs, rollouts.sampler_logprobs, lengths, *self.correction)
            return mismatch_of(rollouts, torch.arange(len(logprobs)), logprobs)
        if self._precedes_updates(rollouts):
            rollouts.old_logprobs = rollouts.sampler_logprobs
        return None

    def _precedes_updates(self, rollouts: Rollouts) -> bool:
        """True if old_logprobs are needed before a single update could yield them."""
        algorithm, batch = self.algorithm, self.optimizer.global_batch
        several = algorithm.ppo_epochs * rollouts.episodes * world_size() > batch
        return several or (algorithm.kl_in == "reward" and algorithm.init_kl_coef > 0)

    def _runs_policy(self, rollouts: Rollouts) -> bool:
        """False if the sampler's log-probabilities serve, or if those of the single update do."""
        if self.algorithm.has_critic or self.is_off_policy or self.correction[0] != "none":
            return True
        # in 16 bits sampler and trainer round differently: the first ratios would not be 1
        serves = self.precision == "fp32"
        return self._precedes_updates(rollouts) and not serves

    def _run(
        self,
        rollouts: Rollouts,
        rows: np.ndarray,
        numbers: torch.Tensor,
        kept: dict[int, torch.Tensor] | None,
        runs_policy: bool,
        runs_reference: bool,
    ) -> None:
        """Fill in these rows of `kept` and of `numbers` [3, M]: log-probabilities of policy and reference, values."""
        batch = RowBatch.of(rollouts, rows, self.device)
        states = self.engine(batch.rows, trunk_only=True) if self.actor.frozen_layers else None
        logprobs = reference = values = None
        if runs_policy:
            logprobs, values, _ = self.engine(batch.rows, batch.targets, states)
        if runs_reference:
            reference = self._reference(batch, states)
        if not len(rows):
            return
        for of_all, of_rows in zip(numbers, (logprobs, reference, values), strict=True):
            if of_rows is not None:
                of_all[batch.tokens] = of_rows.cpu()
        if kept is not None and states is not None:
            tokens = rollouts.tree.tokens[batch.segments].tolist()
            kept |= {n: part.clone() for n, part in zip(batch.segments, states.split(tokens), strict=True)}

    def _batches(self, tree: RowTree) -> list[np.ndarray]:
        """All rows, in batches of the size that runs without a backward."""
        optimizer = self.optimizer
        rows = np.arange(len(tree.episode_of_row))
        return tree.batches(rows, optimizer.micro_batch, optimizer.tokens_per_micro_batch, ROWS_AT_ONCE)

    def _reference(self, batch: RowBatch, states: torch.Tensor | None) -> torch.Tensor:
        if self.reference is None:
            with without_adapters(self.actor):
                return self.engine(batch.rows, batch.targets, states, values=False)[0]
        bf16 = self.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=bf16):
            return self.reference.logprobs(batch.rows, batch.targets, states)

    def _bootstraps(self, rollouts: Rollouts) -> torch.Tensor:
        """[E] values of truncated episodes' next prompts."""
        found, rows = torch.zeros(rollouts.episodes), rollouts.final_rows
        if not self.algorithm.has_critic:
            return found
        tree = RowTree.unshared([len(row) for row in rows], rollouts.final_episodes)
        for chosen in self._batches(tree):
            packed = pack_last_tokens([rows[i] for i in chosen] or [rollouts.rows[0]])
            _, values, _ = self.engine(packed.to(self.device))
            if len(chosen):
                found[torch.from_numpy(rollouts.final_episodes[chosen])] = values.cpu()
        return found

    def _keeps_states(self, rollouts: Rollouts) -> bool:
        """True on all ranks or on none: under ZeRO-3, running frozen layers again is collective."""
        return self.actor.frozen_layers > 0 and self._states_gib(rollouts) <= FROZEN_CACHE_GIB

    def _states_gib(self, rollouts: Rollouts) -> float:
        """Size in fp32 of the frozen layers' states of all rows, on the rank that has most. Collective."""
        size = int(rollouts.tree.tokens.sum()) * width(self.actor.config) * 4 / GIB
        return max_over_ranks(torch.tensor(size, dtype=torch.float64)).item()

    def cache_notes(self, rollouts: Rollouts) -> list[str]:
        """A line the first time that the frozen layers' states are too large to keep. Collective."""
        if not self.actor.frozen_layers or self._said_no_cache or rollouts.frozen_states is not None:
            return []
        size = self._states_gib(rollouts)
        if size <= FROZEN_CACHE_GIB:
            return []
        self._said_no_cache = True
        return [
            f"the frozen layers run again in every epoch: their states take {size:.2f} GiB per iteration, and at most "
            f"{FROZEN_CACHE_GIB:g} are kept; fewer --num_rollouts need less"
        ]


def mismatch_of(rollouts: Rollouts, tokens: torch.Tensor, logprobs: torch.Tensor) -> LogprobMismatch:
    """The mismatch, given the trainer's log-probabilities of these of the M tokens. Collective."""
    sampled, has_loss = rollouts.sampler_logprobs[tokens], rollouts.loss_mask[tokens]
    difference = (logprobs - sampled).abs().double().nan_to_num(float("inf"))  # NaN would hide in a maximum
    gap = gap_sums(logprobs[has_loss], sampled[has_loss])
    sums = torch.tensor([difference.sum(), len(sampled), *gap.values(), has_loss.sum()]).double()
    total, number, *of_loss, with_loss = sum_over_ranks(sums).tolist()
    largest = max_over_ranks(difference.max() if len(difference) else torch.zeros((), dtype=torch.float64)).item()
    kl, ratio, squares, far = (value / max(1.0, with_loss) for value in of_loss)
    if not with_loss:
        return LogprobMismatch(total / max(1.0, number), largest, int(number))
    error = math.sqrt(max(0.0, squares - ratio * ratio) / with_loss)
    return LogprobMismatch(total / max(1.0, number), largest, int(number), kl, squares - 1, ratio, error, far)
