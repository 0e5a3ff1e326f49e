"""What a checkpoint of PPO holds, and how it comes back exactly. Written between iterations: no rollouts are under way.

    model.safetensors, optimizer.pt   plain and DDP; or global_step*/, DeepSpeed's shards of each rank
    loop.json                         iteration, updates, KL coefficient, running moments, scorers' moments, alarm
    rank-00000.pt                     of each rank: random numbers

Prompts, seeds of rollouts and orders of minibatches are functions of (seed, iteration): they need no state.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from lmgym.distributed.plain_engine import Trained
from lmgym.distributed.ranks import raise_on_all_ranks, rank, world_size
from lmgym.random_state import random_state, restore_random_state, seed_all
from lmgym.runs.checkpoint_contents import loading, read_rank, write_rank
from lmgym.runs.checkpoints import ranks_of
from lmgym.runs.files import read_json
from lmgym.scoring.moments import RunningMoments
from ppo.algorithms.advantages import AdaptiveKL
from ppo.config import MethodConfig
from ppo.stopping import Alarm

LOOP = "loop.json"


@final
@dataclass
class LoopState:
    """Where the loop stands, besides the weights."""

    kl: AdaptiveKL
    moments: RunningMoments = field(default_factory=RunningMoments)
    """of rollout scores"""
    scorer_moments: dict[str, tuple[float, float]] | None = None
    alarm: Alarm = field(default_factory=Alarm)
    iteration: int = 0
    """that comes next"""
    first_length: float = 0.0
    """mean tokens of a reply in the first iteration"""
    before: dict[str, float] = field(default_factory=dict)
    """figures of the evaluation before step 1"""
    rounding_gap: float | None = None
    """nats a token between the policy's log-probabilities in 16 bits and in fp32, as last measured (ppo/rounding.py)"""

    @classmethod
    def fresh(cls, method: MethodConfig) -> "LoopState":
        """Before the first iteration."""
        return cls(AdaptiveKL(method.init_kl_coef, method.target, method.horizon))

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "kl": self.kl.state_dict(),
            "moments": self.moments.state_dict(),
            "scorer_moments": self.scorer_moments,
            "alarm": self.alarm.state_dict(),
            "iteration": self.iteration,
            "first_length": self.first_length,
            "before": self.before,
            "rounding_gap": self.rounding_gap,
        }

    def restore(self, said: dict[str, Any]) -> None:
        """Goes on from there."""
        self.kl.load_state_dict(said["kl"])
        self.moments.load_state_dict(said["moments"])
        self.alarm.load_state_dict(said["alarm"])
        moments = said["scorer_moments"]
        self.scorer_moments = None if moments is None else {n: (float(m), float(s)) for n, (m, s) in moments.items()}
        self.iteration, self.first_length = int(said["iteration"]), float(said["first_length"])
        self.before, self.rounding_gap = said["before"], said["rounding_gap"]


def write_state(folder: Path, engine: Trained, state: LoopState) -> None:
    """Writes this rank's part. On every rank."""
    engine.save(folder)
    if rank() == 0:
        (folder / LOOP).write_text(json.dumps(state.as_json()))
    write_rank(folder, random_state())


def read_state(folder: Path, engine: Trained, state: LoopState, seed: int) -> None:
    """What `write_state` wrote. Raises InputError where this rank's random numbers are missing. On every rank.

    Of a checkpoint by another number of ranks, random numbers begin anew: those of ranks that are no more cannot go on.
    """
    same_ranks = ranks_of(folder) == world_size()
    chance = raise_on_all_ranks(lambda: read_rank(folder, rank())) if same_ranks else None
    with loading(folder):
        engine.load(folder)
        state.restore(read_json(folder / LOOP))
        if chance is not None:
            restore_random_state(chance)
        else:
            seed_all(seed, rank(), state.iteration)
