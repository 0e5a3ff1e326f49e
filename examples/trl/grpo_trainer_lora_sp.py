"""GRPO of an adapter by self-play: the learner is every player, and the game's outcome rewards all of its turns.

playpen run examples/trl/grpo_trainer_lora_sp.py -l smollm2-135m -> models/grpo+lora/smollm2-135m/selfplay
"""

from grpo_lora import train_grpo

from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import BasePlayPen


class SelfPlayGrpoTrainer(BasePlayPen):
    """GRPO by self-play."""

    takes_flags = True

    def learn(self, game_registry: GameRegistry) -> None:
        """Train, and print the entry that makes the adapter playable."""
        train_grpo(self, game_registry, lora_rank=8, lora_alpha=16, lora_target_modules="q_proj,v_proj")
