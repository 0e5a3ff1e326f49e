"""The proof that a server samples from the weights of the trainer.

A server's log-probabilities of its own replies to a fixed prompt are compared with the trainer's of the same ids. At a
learning rate of 1e-6 the old weights would pass that too, in 16 bits. Therefore, before step 1, all trained weights are
changed by much, synced, and changed back: a sync that sends nothing, or less than all, cannot follow that.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from lmgym.distributed.plain_engine import TrainingEngine
from lmgym.distributed.ranks import rank
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion
from lmgym.models.forward.packed_rows import pack_rows
from lmgym.models.parameters import gathered
from ppo.weight_sync import BUCKET_BYTES, in_buckets

PROBE_TOKENS, PROMPT_TOKENS = 12, 144
"""of a reply; of the prompt, more than a block of the prefix cache, which on a CPU has 128"""
STRENGTHS = (1, 2)  # of a change; the second one if the first can hardly be seen in 16 bits
FACTOR = 0.5  # of all weights, which is exact in fp32 and bf16, as is twice that; larger ones make networks chaotic
ADAPTER_STD = 0.6  # over the root of the rank: of what takes the place of an adapter's second matrix, which begins at 0
LEAST_CHANGE = {"fp32": 100.0, "bf16": 6.0}
"""the change's effect on log-probabilities, as a multiple of what remains after it was synced"""
MOST = {"fp32": 1e-3, "bf16": 0.25}
"""nats, of the largest difference in fp32 and of the mean in bf16, which differs by .05 on SmolLM2"""

Probe = tuple[list[int], Completion]
"""a prompt, and a server's reply to it"""


@dataclass(frozen=True)
class Gap:
    """Differences of log-probabilities of a server's replies, nats per token."""

    mean: float
    largest: float

    def of(self, precision: str) -> float:
        """The one that counts: in 16 bits single tokens round far more than others."""
        return self.largest if precision == "fp32" else self.mean


def probe_prompt(prompts: Sequence[Sequence[int]], room: int) -> list[int]:
    """PROMPT_TOKENS ids, or `room` if that is less, of the run's prompts end to end; so many that a server caches their
    keys and values, as it may fail to renew them.
    """
    ids = [id_ for prompt in prompts for id_ in prompt]
    length = max(1, min(PROMPT_TOKENS, room))
    return (ids * (1 + length // len(ids)))[:length]


@torch.no_grad()
def trainer_logprobs(engine: TrainingEngine, probes: Sequence[Probe], device: torch.device) -> torch.Tensor:
    """Log-probabilities [M] of the replies' ids by the trainer's forward. Collective."""
    rows = [[*prompt, *reply.ids] for prompt, reply in probes]
    packed = pack_rows(rows, [len(reply.ids) for _, reply in probes])
    targets = torch.tensor([id_ for _, reply in probes for id_ in reply.ids], device=device)
    return engine(packed.to(device), targets, None, values=False)[0].float().cpu()


def gap_to(trainer: torch.Tensor, probes: Sequence[Probe]) -> Gap:
    """The distance of the servers' log-probabilities."""
    served = torch.tensor([x for _, reply in probes for x in reply.logprobs])
    difference = (trainer - served).abs().double().nan_to_num(torch.inf)
    return Gap(difference.mean().item(), difference.max().item())


def refuse_other_weights(gap: Gap, precision: str, where: str) -> None:
    """Raises InputError if a server's log-probabilities are not those of the trainer's weights."""
    if (found := gap.of(precision)) > MOST[precision]:
        unit, most = "nats at one token" if precision == "fp32" else "nats a token", MOST[precision]
        raise InputError(
            f"{where}, server and trainer differ by {found:.3g} {unit}, {most:g} are allowed in {precision}: "
            "the server has other weights, or a prefix cache of earlier ones; needed: vLLM 0.32, as lmgym engine serve "
            "starts it, or lmgym's own engine: leave --engine out"
        )


def prove_transfer(
    engine: TrainingEngine,
    trained: Sequence[tuple[str, torch.Tensor]],
    precision: str,
    device: torch.device,
    sync: Callable[[], list[Probe]],
) -> None:
    """Change all trained weights, `sync` them, and check that the servers follow; the weights are as before then.

    Raises InputError, on all ranks, if they do not. Collective.
    """
    for strength in STRENGTHS:
        with changed(trained, strength):
            probes = sync()
            after = gap_to(trainer_logprobs(engine, probes, device), probes)
        before = gap_to(trainer_logprobs(engine, probes, device), probes)
        if before.of(precision) >= LEAST_CHANGE[precision] * after.of(precision):
            return
    far, near = before.of(precision), after.of(precision)
    raise InputError(
        f"all trained weights were changed and synced, and the server's log-probabilities are {near:.3g} nats from the "
        f"trainer's and {far:.3g} from those before: it does not have all that was sent; needed: vLLM 0.32, as lmgym "
        "engine serve starts it, or lmgym's own engine: leave --engine out"
    )


@contextmanager
def changed(trained: Sequence[tuple[str, torch.Tensor]], strength: int = 1) -> Iterator[None]:
    """Within a `with`, trained weights are far from what they are: halved `strength` times, or, of adapters, whose
    second matrices may be 0, these are random. Collective under ZeRO-3.
    """
    adapters = [(name, p) for name, p in trained if ".lora_B." in name or ".lora_embedding_B." in name]
    factor, kept = FACTOR**strength, dict[str, torch.Tensor]()

    def change(name: str, weight: torch.Tensor) -> None:
        if adapters:
            kept[name] = weight.clone()
            rank_of_adapter = min(weight.shape)
            noise = np.random.default_rng(len(kept)).normal(size=tuple(weight.shape))
            weight.copy_(torch.from_numpy(strength**2 * ADAPTER_STD / rank_of_adapter**0.5 * noise))
        else:
            weight.mul_(factor)

    def undo(name: str, weight: torch.Tensor) -> None:
        if adapters:
            weight.copy_(kept[name])
        else:
            weight.mul_(1 / factor)

    chosen = adapters or trained
    _edit(chosen, change)
    try:
        yield
    finally:
        _edit(chosen, undo)


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
