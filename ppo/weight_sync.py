"""Weight sync: the weights that sample are the policy's own, or a copy that is updated before each rollout phase.

Under ZeRO-3 each rank has a part of every weight; with a whole copy, ranks sample independently. In bf16 without
DeepSpeed the trained weights are fp32, and autocast would round them at every token: linear layers that are trained
have a rounded copy, and everything else is shared with the policy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, final

import numpy as np
import torch

from lmgym.distributed.ranks import max_over_ranks, sum_over_ranks
from lmgym.distributed.weights import own_part
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.wider import wider_logprobs
from lmgym.models.memory import check_copy_fits
from lmgym.models.parameters import copied, gathered, with_rounded_linear_layers
from lmgym.models.quantized import is_quantized
from lmgym.models.saving import unwrap_adapters
from ppo.actor_critic import ActorCritic
from ppo.rollouts import Rollouts, RowBatch

ROWS, ROWS_AT_ONCE = 32, 4  # per rank, for the rounding: some hundred tokens
SAMPLER_FACTOR = 1.5  # maximum distance of the sampler from the wider forward, as a multiple of the trainer's
LARGEST_FACTOR = 4.0  # the same in fp32, where the largest distances are compared: they spread more than means
LEAST = 1e-3  # nats per token that change no update: a ratio of 1.001
LEAST_LARGEST = 1e-4  # in fp32, of any token
BUCKET_BYTES = 1 << 28  # of the weights that ZeRO-3 gathers together in a sync

T = TypeVar("T")


class Sampler(Protocol):
    """The sampler of a run, and its weights. All methods are collective."""

    generator: Any
    """a TokenGenerator, and a Generator"""
    runs_elsewhere: bool
    """another process samples: a thread can wait for it while this one trains"""

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last sync."""
        ...

    @property
    def whole(self) -> Decoder | None:
        """The policy with whole weights, if they are in this process."""
        ...

    def sync(self, version: int = 0, proves: bool = False) -> None:
        """Take the engine's weights, of this version, and with `proves` prove that they are those that sample."""
        ...

    def rest(self) -> None:
        """Nothing is sampled until the next sync. Raises ServerError for a dead server."""
        ...

    def refuse_stale(self, version: int) -> None:
        """Raises InputError if the weights are not those of this version."""
        ...

    def recover(self, error: Exception) -> None:
        """Bring back what failed with that error, without weights of the policy; or raise it."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


@final
class SamplingPolicy:
    """The policy itself, in this process, as the sampler. Create it before an engine wraps the policy."""

    runs_elsewhere = False
    """True of a sampler whose engine is another process, so that a thread can wait for it while this one trains"""

    def __init__(self, actor: ActorCritic, tokenizer, precision: str, sharded: bool, under_deepspeed: bool, rows: int):
        self.actor = actor
        # quantised weights compute in bf16 as they are
        rounds = precision == "bf16" and not under_deepspeed and not is_quantized(actor.causal)
        self.sharded, self.copied = sharded, sharded or rounds
        model = actor.policy
        if self.copied:
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            check_copy_fits(sum(p.numel() for p in model.parameters() if sharded or p.requires_grad), dtype)
            model = with_rounded_linear_layers(model) if rounds else copied(model, dtype)
        self.policy = model
        causal = unwrap_adapters(model)
        self.generator = LocalGenerator(
            causal, tokenizer, rows, Decoder(causal, actor.decoder.structure), torch.bfloat16 if rounds else None
        )
        trained = dict(actor.policy.named_parameters())
        # a tied head of rounded layers is a separate copy; its name is the embedding's
        head = actor.causal.get_output_embeddings().weight
        self._pairs = [(name, trained.get(name, head), own) for name, own in self.policy.named_parameters()]
        self._synced = False
        self.version = -1
        """the engine's version at the last sync"""

    @property
    def whole(self) -> Decoder:
        """The policy with whole weights: the trained one, or the copy under ZeRO-3."""
        return self.generator.decoder if self.sharded else self.actor.decoder

    @property
    def metrics(self) -> dict[str, float]:
        """None."""
        return {}

    def recover(self, error: Exception) -> None:
        """Raises the error, as nothing here can be started again."""
        raise error

    def rest(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""

    @torch.no_grad()
    def sync(self, version: int = 0, proves: bool = False) -> None:
        """Copy the engine's weights of this version, frozen ones only once. Collective under ZeRO-3.

        `refuse_stale` is the proof here.
        """
        pairs = self._pairs if self.copied else []
        due = [(p, own) for _, p, own in pairs if own is not p and (p.requires_grad or not self._synced)]
        for bucket in in_buckets(due, [own.numel() * p.element_size() for p, own in due], BUCKET_BYTES):
            with gathered([trained for trained, _ in bucket]):
                for trained, own in bucket:
                    own.copy_(trained)
        self._synced, self.version = True, version
        self.generator.renew()

    @torch.no_grad()
    def refuse_stale(self, version: int) -> None:
        """Raises InputError if the sampler's weights are not the trainer's, which have this version.

        Log-probabilities cannot show it: an update at a rate of 1e-5 changes them as much as bf16 rounding. A copy is
        compared weight by weight, under ZeRO-3 this rank's parts.
        """
        names, differ = [], []
        for name, trained, own in self._pairs:
            if self.copied and own is not trained and trained.requires_grad:
                part, begin = own_part(trained)
                names.append(name)
                differ.append((own.flatten()[begin : begin + len(part)] != part.to(own)).any())
        # all of them before any is read: no wait for the device between
        others = [
            name for name, other in zip(names, torch.stack(differ).tolist() if differ else [], strict=True) if other
        ]
        if others or version != self.version:
            found = f"{len(others)} of {len(names)} matrices and vectors differ, {others[0]} first" if others else ""
            raise InputError(
                f"the sampler's weights are not the trainer's: sampled after update {self.version} of this process, "
                f"trained after {version}{found and '; '}{found}: the replies are of another policy; a defect of ours"
            )


def in_buckets(items: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[list[T]]:
    """The items in order, in runs whose sizes sum to at most that; a larger item is a run of its own."""
    bucket: list[T] = []
    filled = 0
    for item, size in zip(items, sizes, strict=True):
        if bucket and filled + size > most:
            yield bucket
            bucket, filled = [], 0
        bucket.append(item)
        filled += size
    if bucket:
        yield bucket


@dataclass(frozen=True)
class Rounding:
    """Absolute differences of log-probabilities from the trainer's forward in a wider dtype, nats, over all ranks.

    Sampler and trainer are measured against the same forward, over the same rows. If both compute the same function,
    their distances are similar whatever the model. In 16 bits the wider dtype is fp32, and the distances are means over
    tokens: 0.97 to 1.15 of each other on SmolLM2-135M, with DeepSpeed or without, where both are 0.03. A position that
    is off by one within a reply makes that 2.1 or more, a temperature that is off by 5% 2.3 or more. "fp32" is of the
    weights as training has them: under DeepSpeed those rounded to 16 bits, so that the rounding of the computation is
    measured. In fp32 the wider dtype is fp64, and the distances are the largest of any token.
    """

    trainer: float
    """of the trainer's own forward"""
    sampler: float
    tokens: int
    precision: str = "bf16"

    @property
    def allowed(self) -> float:
        """The maximum of `sampler`."""
        if self.precision == "fp32":
            return max(LEAST_LARGEST, LARGEST_FACTOR * self.trainer)
        return SAMPLER_FACTOR * _upper(self.trainer, self.tokens)


def allowed_difference(precision: str, trainer: float, tokens: int) -> float:
    """Maximum difference of two computations, in nats: each has a distance from the wider forward, one of them
    `trainer` and the other up to a factor times that. In 16 bits of the mean over tokens, in fp32 of the largest.
    """
    if precision == "fp32":
        return max(LEAST_LARGEST, (1 + LARGEST_FACTOR) * trainer)
    return (1 + SAMPLER_FACTOR) * _upper(trainer, tokens)


def _upper(mean: float, tokens: int) -> float:
    """A mean plus two standard errors: the standard deviation of single tokens is about their mean."""
    return max(LEAST, mean) * (1 + 2 / max(1, tokens) ** 0.5)


@torch.no_grad()
def measure_rounding(
    decoder: Decoder,
    rollouts: Rollouts,
    temperature: float,
    device: torch.device,
    precision: str = "bf16",
    rows: np.ndarray | None = None,
) -> Rounding:
    """Compare up to ROWS rows per rank with the wider forward of `decoder`, the policy with whole weights: in 16 bits
    rows at even distances, in fp32 those in which sampler and trainer differ most, since a policy that is certain of
    most tokens rounds the others far more. They are among `rows`, by default all. Collective only in its sums: under
    ZeRO-3 the sampler's copy is used, so that no rank waits for another.
    """
    rows = np.arange(len(rollouts.rows)) if rows is None else rows
    is_fp32, count = precision == "fp32", min(ROWS, len(rows))
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, count).astype(np.int64))]
    if is_fp32 and count:
        apart = (rollouts.old_logprobs - rollouts.sampler_logprobs).abs().numpy()
        of_row = np.maximum.reduceat(apart, rollouts.row_starts[:-1])[rows]
        chosen = np.sort(rows[np.argsort(of_row)[-count:]])
    dtype = torch.float64 if is_fp32 else torch.float32
    sums, largest = torch.zeros(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for first in range(0, len(chosen), ROWS_AT_ONCE):
        batch = RowBatch.of(rollouts, chosen[first : first + ROWS_AT_ONCE], device)
        exact = wider_logprobs(decoder, batch.rows, batch.targets, temperature, dtype).cpu()
        both = (rollouts.old_logprobs[batch.tokens], rollouts.sampler_logprobs[batch.tokens])
        distances = torch.stack([(one - exact).abs().double().nan_to_num(torch.inf) for one in both])
        sums += torch.tensor([*distances.sum(1), len(exact)])
        largest = torch.maximum(largest, distances.amax(1))
    trainer, sampler, tokens = sum_over_ranks(sums).tolist()
    if is_fp32:
        trainer, sampler = max_over_ranks(largest).tolist()
    else:
        trainer, sampler = trainer / max(1, tokens), sampler / max(1, tokens)
    return Rounding(trainer, sampler, int(tokens), precision)
