"""The weights that sample: the policy's own where they are whole and of the working type, else a copy kept in step.

Under ZeRO-3 each rank has a part of every weight; gathered into a copy of its own, ranks sample freely, each at its own
length. In bf16 without DeepSpeed the trained weights are fp32, and autocast would round them at every token: linear
layers have a rounded copy, and everything else is the policy's own. The forward is then the one that trains.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch

from lmgym.distributed.deepspeed_engine import own_part
from lmgym.distributed.ranks import sum_over_ranks
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.models.copies import copied, with_rounded_linear_layers
from lmgym.models.forward.decoder import Decoder
from lmgym.models.forward.fp32 import logprobs_in_fp32
from lmgym.models.memory import GIB
from lmgym.models.parameters import gathered
from lmgym.models.quantized import is_quantized
from lmgym.models.saving import below_adapters
from ppo.actor_critic import ActorCritic
from ppo.experience import Batch
from ppo.rollouts import Rollouts


@final
class SamplingPolicy:
    """A generator and the weights that it reads. Made before the policy is wrapped by an engine."""

    def __init__(self, actor: ActorCritic, tokenizer, precision: str, sharded: bool, under_deepspeed: bool, rows: int):
        self.actor = actor
        # quantised weights compute in bf16 as they are
        rounds = precision == "bf16" and not under_deepspeed and not is_quantized(actor.causal)
        self.sharded, self.copied = sharded, sharded or rounds
        model = actor.policy
        if self.copied:
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            _refuse_no_room(model, dtype)
            model = with_rounded_linear_layers(model) if rounds else copied(model, dtype)
        self.policy = model
        causal = below_adapters(model)
        self.generator = LocalGenerator(
            causal, tokenizer, rows, Decoder(causal, actor.decoder.anatomy), torch.bfloat16 if rounds else None
        )
        trained = dict(actor.policy.named_parameters())
        # a tied head of rounded layers is a copy of its own: by name it is the embedding
        head = actor.causal.get_output_embeddings().weight
        self._pairs = [(name, trained.get(name, head), own) for name, own in self.policy.named_parameters()]
        self._synced = False
        self.version = -1
        """the engine's, of the weights that were taken over last"""

    @property
    def whole(self) -> Decoder:
        """The policy with whole weights: the trained one, or the copy where ZeRO-3 has sharded that."""
        return self.generator.decoder if self.sharded else self.actor.decoder

    @torch.no_grad()
    def sync(self, version: int = 0) -> None:
        """Takes over the weights as they are now; a copy's one by one, frozen ones once. Collective under ZeRO-3.

        `version` is the engine's.
        """
        if self.copied:
            for _, trained, own in self._pairs:
                if own is not trained and (trained.requires_grad or not self._synced):
                    with gathered([trained]):
                        own.copy_(trained)
        self._synced, self.version = True, version
        self.generator.renew()

    @torch.no_grad()
    def refuse_stale(self, version: int) -> None:
        """Raises InputError where the weights that sample are not those that learn, which are of this version.

        Exact, where log-probabilities cannot tell: an update at a rate of 1e-5 moves them by as much as bf16 rounds
        them. A copy is compared weight by weight, under ZeRO-3 those of which this rank has a part.
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


def _refuse_no_room(model, dtype: torch.dtype) -> None:
    """Raises InputError where a GPU has no room for a second, whole copy."""
    if not torch.cuda.is_available():
        return
    needed = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    free, _ = torch.cuda.mem_get_info()
    if needed > free:
        raise InputError(
            f"sampling needs a whole copy of the policy on each rank, {needed / GIB:.1f} GiB; {free / GIB:.1f} GiB are "
            "free; needed: --deepspeed configs/zero2.json, where the weights are whole anyway, or a smaller policy"
        )


ROWS = 32  # of each rank that are measured: some hundred tokens, and a forward that no user notices

ROWS_AT_ONCE = 4

SAMPLER_FACTOR = 1.5  # distance of the sampler from fp32, as a multiple of the trainer's own: see above

LEAST = 1e-3  # nats a token that change no update: a ratio of 1.001


@dataclass(frozen=True)
class Rounding:
    """Mean absolute differences of log-probabilities from the trainer's forward in fp32, nats a token, all ranks."""

    trainer: float
    """of the trainer's forward in 16 bits"""
    sampler: float
    tokens: int

    @property
    def allowed(self) -> float:
        """Most that `sampler` may be; more where few tokens were compared, whose mean is uncertain."""
        return SAMPLER_FACTOR * _of_few(self.trainer, self.tokens)


def allowed_apart(trainer: float, tokens: int) -> float:
    """Most nats a token that two computations in 16 bits may differ by on average: each has a distance from fp32, one
    of them `trainer` and the other up to SAMPLER_FACTOR times that.
    """
    return (1 + SAMPLER_FACTOR) * _of_few(trainer, tokens)


def _of_few(gap: float, tokens: int) -> float:
    """A mean with what chance may add to it: single tokens spread about as much as their mean."""
    return max(LEAST, gap) * (1 + 2 / max(1, tokens) ** 0.5)


@torch.no_grad()
def measure_rounding(decoder: Decoder, rollouts: Rollouts, temperature: float, device: torch.device) -> Rounding:
    """Of up to ROWS rows of each rank, whose log-probabilities in 16 bits are known. Collective.

    `decoder` is of the policy with whole weights.
    """
    chosen = np.unique(np.linspace(0, len(rollouts.rows) - 1, min(ROWS, len(rollouts.rows))).astype(np.int64))
    sums = torch.zeros(3, dtype=torch.float64)
    for rows in np.split(chosen, range(ROWS_AT_ONCE, len(chosen), ROWS_AT_ONCE)):
        if len(rows):
            batch = Batch.of(rollouts, rows, device)
            exact = logprobs_in_fp32(decoder, batch.rows, batch.targets, temperature).cpu()
            both = (rollouts.logprobs[batch.places], rollouts.sampler_logprobs[batch.places])
            sums += torch.tensor([*((one - exact).abs().double().sum() for one in both), len(exact)])
    trainer, sampler, tokens = sum_over_ranks(sums).tolist()
    return Rounding(trainer / max(1, tokens), sampler / max(1, tokens), int(tokens))
