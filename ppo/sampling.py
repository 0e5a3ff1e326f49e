"""The weights that sample: the policy's own where they are whole and of the working type, else a copy kept in step.

Under ZeRO-3 each rank has a part of every weight; gathered into a copy of its own, ranks sample freely, each at its own
length. In bf16 without DeepSpeed the trained weights are fp32: a rounded copy reads half as much a token. Its layers
add up in fp32, as autocast lets those that learn: of 36 random layers log-probabilities are .018 apart, else .022.
"""

import copy
from typing import final

import torch

from lmgym.engine import own_part
from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.models.kept_states import KeptStates
from lmgym.models.memory import GIB
from lmgym.models.parameters import gathered
from lmgym.models.saving import below_adapters
from ppo.models import ActorCritic


@final
class SamplingPolicy:
    """A generator and the weights that it reads. Made before the policy is wrapped by an engine."""

    def __init__(self, actor: ActorCritic, tokenizer, precision: str, sharded: bool, under_deepspeed: bool, rows: int):
        self.actor = actor
        rounds = precision == "bf16" and not under_deepspeed
        self.sharded, self.copied = sharded, sharded or rounds
        # DeepSpeed may make a forward collective: ranks would have to agree on whose states are whole
        self.keeps_states = precision == "fp32" and not under_deepspeed and actor.frozen_layers > 0
        model = actor.policy
        if self.copied:
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            _refuse_no_room(model, dtype)
            model = copied(model, dtype)
        self.policy = model
        self.generator = LocalGenerator(below_adapters(model), tokenizer, rows)
        self.generator.family.sums_in_fp32 = rounds
        self._synced = False
        self.version = -1
        """the engine's, of the weights that were taken over last"""

    @property
    def whole(self):
        """The policy with whole weights: the trained one, or the copy where ZeRO-3 has sharded that."""
        return self.policy if self.sharded else self.actor.policy

    @torch.no_grad()
    def sync(self, keeps_gib: float = 0.0, version: int = 0) -> None:
        """Takes over the weights as they are now; a copy's one by one, frozen ones once. Collective under ZeRO-3.

        `version` is the engine's. What follows keeps up to so much of the frozen layers' states in `states`, where they
        are those that training would compute: in fp32 without DeepSpeed.
        """
        keeps = self.keeps_states and keeps_gib > 0
        self.generator.keeps = KeptStates(self.actor.frozen_layers, keeps_gib * GIB / 4) if keeps else None
        if self.copied:
            for trained, own in zip(self.actor.policy.parameters(), self.policy.parameters(), strict=True):
                if trained.requires_grad or not self._synced:
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
        for (name, trained), own in zip(self.actor.policy.named_parameters(), self.policy.parameters(), strict=True):
            if self.copied and trained.requires_grad:
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

    @property
    def states(self) -> KeptStates | None:
        """What the replies since the last `sync` left."""
        return self.generator.keeps


def copied(model, dtype: torch.dtype):
    """A frozen copy with weights of this type, one by one: there is no second copy as wide as the first in between.

    Buffers stay as they are: see round_weights in lmgym/models/loading.py.
    """
    weights = {id(p): torch.nn.Parameter(p.detach().to(dtype, copy=True), False) for p in model.parameters()}
    return copy.deepcopy(model, weights)


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
