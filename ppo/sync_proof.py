"""The proof that a server samples from the weights of the trainer.

Design decisions:
- After every sync a server's log-probabilities of its own replies to fixed prompts are compared with the trainer's of
  the same ids. The limit is a multiple of the trainer's own rounding on these ids.
- At a learning rate of 1e-6 the old weights would pass that too, in 16 bits. Therefore, before step 1 and in every
  tenth sync, all trained weights are changed by much, synced, and changed back: a sync that sends nothing,
  or less than all, cannot follow that.
- One layer of many hardly shows in log-probabilities in 16 bits. So in both states the server's layers are compared
  with the trainer's one by one, where it has lmgym's receiver (lmgym/generation/vllm_plugin).
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.ranks import rank
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.models.forward.packed_rows import PackedRows, pack_rows
from lmgym.models.forward.wider import wider_logprobs
from lmgym.models.parameters import gathered
from ppo.actor_critic import ActorCritic
from ppo.weight_sync import BUCKET_BYTES, in_buckets

PROBE_TOKENS, PROMPT_TOKENS = 12, 144
"""of a reply; of the prompt, more than a block of the prefix cache, which on a CPU has 128"""
STRENGTHS = (1, 2)  # of a change; the second one if the first can hardly be seen in 16 bits
FACTOR = 0.5  # of all weights, which is exact in fp32 and bf16, as is twice that; larger ones make networks chaotic
ADAPTER_STD = 0.3  # over the root of the rank: of what takes the place of an adapter's second matrix, which begins at 0
LEAST_CHANGE = {"fp32": 100.0, "bf16": 6.0}
"""the change's effect on log-probabilities, as a multiple of what remains after it was synced"""
NEEDED = "needed: vLLM 0.32, as lmgym engine serve starts it, or lmgym's own engine: leave --engine out"
ROUNDINGS = 4.0
"""maximum distance of a server from the trainer, as a multiple of the trainer's own rounding"""
LEAST = {"fp32": 1e-3, "bf16": 0.05}
"""nats that are allowed in any case: of the largest difference in fp32, of the mean in bf16"""
UNKNOWN = {"fp32": 1e-3, "bf16": 0.25}
"""the same where the trainer's rounding is not known, as under ZeRO-3"""
LAYER = {"fp32": 1e-3, "bf16": 0.05}
"""maximum difference of a layer's outputs, over their root mean square: 2e-6 and .012 were seen"""

Probe = tuple[list[int], Completion]
"""a prompt, and a server's reply to it"""


class SyncError(InputError):
    """A server does not have the weights that were sent."""


@dataclass(frozen=True)
class Gap:
    """Differences of log-probabilities of a server's replies, nats per token."""

    mean: float
    largest: float

    @classmethod
    def between(cls, one: torch.Tensor, other: torch.Tensor) -> "Gap":
        """Of two lists of log-probabilities of the same tokens."""
        difference = (one - other).abs().double().nan_to_num(torch.inf)
        return cls(difference.mean().item(), difference.max().item())

    def of(self, precision: str) -> float:
        """The one that counts: in 16 bits single tokens round far more than others."""
        return self.largest if precision == "fp32" else self.mean


def allowed_gap(precision: str, rounding: float | None) -> float:
    """Maximum distance of a server from the trainer, in nats, given the trainer's own rounding."""
    return UNKNOWN[precision] if rounding is None else max(LEAST[precision], ROUNDINGS * rounding)


def probe_prompts(prompts: Sequence[Sequence[int]], room: int) -> list[list[int]]:
    """Two prompts of PROMPT_TOKENS ids, or `room` if that is less: the run's prompts end to end, and backwards. So many
    that a server caches their keys and values, as it may fail to renew them.
    """
    ids = [id_ for prompt in prompts for id_ in prompt]
    length = max(1, min(PROMPT_TOKENS, room))
    return [(own * (1 + length // len(ids)))[:length] for own in (ids, ids[::-1])]


@torch.no_grad()
def trainer_logprobs(engine: TrainingEngine, probes: Sequence[Probe], device: torch.device) -> torch.Tensor:
    """Log-probabilities [M] of the replies' ids by the trainer's forward. Collective."""
    packed, targets = _packed(probes, device)
    return engine(packed, targets, None, values=False)[0].float().cpu()


@torch.no_grad()
def trainer_rounding(
    actor: ActorCritic, trainer: torch.Tensor, probes: Sequence[Probe], precision: str, device: torch.device
) -> float | None:
    """The distance of the trainer's log-probabilities from those of the same weights in a wider dtype; None where the
    weights are not whole here.
    """
    if any(hasattr(p, "ds_id") for p in actor.policy.parameters()):
        return None
    packed, targets = _packed(probes, device)
    dtype = torch.float64 if precision == "fp32" else torch.float32
    wider = wider_logprobs(actor.decoder, packed, targets, actor.temperature, dtype)
    return Gap.between(trainer, wider.float().cpu()).of(precision)


def _packed(probes: Sequence[Probe], device: torch.device) -> tuple[PackedRows, torch.Tensor]:
    rows = [[*prompt, *reply.ids] for prompt, reply in probes]
    packed = pack_rows(rows, [len(reply.ids) for _, reply in probes])
    return packed.to(device), torch.tensor([id_ for _, reply in probes for id_ in reply.ids], device=device)


def gap_to(trainer: torch.Tensor, probes: Sequence[Probe]) -> Gap:
    """The distance of the servers' log-probabilities."""
    return Gap.between(trainer, torch.tensor([x for _, reply in probes for x in reply.logprobs]))


def refuse_other_weights(gap: Gap, precision: str, where: str, rounding: float | None) -> None:
    """Raises SyncError if a server's log-probabilities are not those of the trainer's weights."""
    if (found := gap.of(precision)) > (most := allowed_gap(precision, rounding)):
        unit = "nats at one token" if precision == "fp32" else "nats a token"
        own = "" if rounding is None else f"; the trainer's own rounding is {rounding:.2g}"
        raise SyncError(
            f"{where}, server and trainer differ by {found:.3g} {unit}, {most:.2g} are allowed in {precision}{own}: "
            f"the server has other weights, or a prefix cache of earlier ones; {NEEDED}"
        )


def prove_transfer(
    engine: TrainingEngine,
    trained: Sequence[tuple[str, torch.Tensor]],
    precision: str,
    device: torch.device,
    sync: Callable[[], list[Probe]],
    compare: Callable[[], Mapping[str, float]],
) -> Mapping[str, float]:
    """Change all trained weights, `sync` them, and check that the servers follow; the weights are as before then.

    Returns what `compare` found while they were changed. Raises SyncError, on all ranks, if the servers do not follow.
    Collective.
    """
    for strength in STRENGTHS:
        with changed(trained, strength):
            probes = sync()
            after = gap_to(trainer_logprobs(engine, probes, device), probes)
            layers = compare()
        before = gap_to(trainer_logprobs(engine, probes, device), probes)
        if before.of(precision) >= LEAST_CHANGE[precision] * after.of(precision):
            return layers
    far, near = before.of(precision), after.of(precision)
    raise SyncError(
        f"all trained weights were changed and synced, and the server's log-probabilities are {near:.3g} nats from the "
        f"trainer's and {far:.3g} from those before: it does not have all that was sent; {NEEDED}"
    )


def refuse_other_layers(
    changed: Mapping[str, float], restored: Mapping[str, float], found: Collection[str], precision: str
) -> set[str]:
    """The layers that the server has as the trainer has them, by their distances after both syncs of a proof.

    A layer that the server had so in an earlier proof (`found`), or after one of the syncs, must be so after both.
    Where it is found after neither, the server may hold it in another layout. Raises SyncError.
    """
    good = [{name for name, distance in one.items() if distance <= LAYER[precision]} for one in (changed, restored)]
    stale = sorted((good[0] | good[1] | {*found}) - (good[0] & good[1]))
    if stale:
        worst = max(max(changed.get(name, math.inf), restored.get(name, math.inf)) for name in stale)
        raise SyncError(
            f"all trained weights were changed, synced, and changed back, and {len(stale)} of {len(changed)} layers of "
            f"the server did not follow, {stale[0]} first (their outputs differ by {worst:.2g} of their size): "
            f"it does not use all that was sent; {NEEDED}"
        )
    return good[0]


@contextmanager
def changed(trained: Sequence[tuple[str, torch.Tensor]], strength: int = 1) -> Iterator[None]:
    """Within a `with`, trained weights are far from what they are: halved `strength` times, or, of adapters, the first
    matrices doubled and the second ones, which may be 0, random. Collective under ZeRO-3.
    """
    second = {name for name, _ in trained if ".lora_B." in name or ".lora_embedding_B." in name}
    factor, kept = (1 / FACTOR if second else FACTOR) ** strength, dict[str, torch.Tensor]()

    def change(name: str, weight: torch.Tensor) -> None:
        if name in second:
            kept[name] = weight.clone()
            rank_of_adapter = min(weight.shape)
            noise = np.random.default_rng(len(kept)).normal(size=tuple(weight.shape))
            weight.copy_(torch.from_numpy(strength * ADAPTER_STD / rank_of_adapter**0.5 * noise))
        else:
            weight.mul_(factor)

    def undo(name: str, weight: torch.Tensor) -> None:
        if name in second:
            weight.copy_(kept[name])
        else:
            weight.mul_(1 / factor)

    _edit(trained, change)
    try:
        yield
    finally:
        _edit(trained, undo)


def whole_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape of a parameter, of which ZeRO-3 may have a part here."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def weight_buckets(trained: Sequence[tuple[str, torch.Tensor]]) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Named weights in order, in runs that may be whole in memory together."""
    sizes = [torch.Size(whole_shape(p)).numel() * p.element_size() for _, p in trained]
    return in_buckets(trained, sizes, BUCKET_BYTES)


@torch.no_grad()
def _edit(trained: Sequence[tuple[str, torch.Tensor]], edit: Callable[[str, torch.Tensor], None]) -> None:
    """Apply a change to whole weights: on every rank, or, under ZeRO-3, on rank 0 for all."""
    for bucket in weight_buckets(trained):
        with gathered([p for _, p in bucket], modifier_rank=0):
            for name, p in bucket:
                if rank() == 0 or not hasattr(p, "ds_id"):
                    edit(name, p.data)
