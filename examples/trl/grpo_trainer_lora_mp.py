"""GRPO of an adapter with a teacher as the partner: the learner takes each seat in turn.

playpen run examples/trl/grpo_trainer_lora_mp.py -l smollm2-135m -t mock -> models/grpo+lora/smollm2-135m/mock
"""

from grpo_lora import train_grpo

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import BasePlayPen
from lmgym.errors import InputError


class TeacherGrpoTrainer(BasePlayPen):
    """GRPO with a teacher."""

    takes_flags = True

    def __init__(self, learner: Model, teacher: Model | None = None) -> None:
        super().__init__(learner, teacher)
        if teacher is None:
            raise InputError("grpo_trainer_lora_mp without a teacher; needed: -t MODEL, or grpo_trainer_lora_sp")

    def learn(self, game_registry: GameRegistry) -> None:
        """Train, and print the entry that makes the adapter playable."""
        train_grpo(self, game_registry, lora_rank=16, lora_alpha=32)
