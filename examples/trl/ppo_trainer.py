"""PPO with a critic, by self-play or with a teacher; with -l mock a dry run that plays and leaves playpen-records/.

playpen examples/trl/ppo_trainer.py -l smollm2-135m -t smollm2-135m -L 300 -> models/ppo+lora/smollm2-135m/TEACHER
"""

from pathlib import Path

from grpo_lora import grpo_config, train_in_games

from lmgym.apps.playpen.playing import close_games
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import (
    RECORDS,
    BasePlayPen,
    GameRecordCallback,
    all_tasks,
    open_games,
)
from lmgym.apps.playpen.trainers.checkpoints import keep_checkpoint
from lmgym.console import say
from ppo.config import MethodConfig

DRY_RUN_TASKS = 2  # of each game


class PpoPlayPen(BasePlayPen):
    """PPO of an adapter."""

    takes_flags = True

    def learn(self, game_registry: GameRegistry) -> None:
        """Train, and print the entry that makes the adapter playable; a mock learner only plays."""
        if self.learner.is_programmed:
            self._play(game_registry)
            return
        partner = self.teacher.name if self.teacher else "selfplay"
        folder = Path("models/ppo+lora") / self.learner.name / partner
        config = grpo_config(self, folder, MethodConfig("ppo"), lora_rank=16, lora_alpha=32)
        folder = train_in_games(self, game_registry, config)
        keep_checkpoint(self.learner, folder, "adapter", f"ppo-{partner}")

    def _play(self, game_registry: GameRegistry) -> None:
        self.add_callback(GameRecordCallback())
        games = open_games(game_registry)
        try:
            for game in games:
                self.collect_rollouts(game, [task for _, task in all_tasks([game], DRY_RUN_TASKS)])
        finally:
            close_games(games)
        say(f"a dry run of {len(games)} games with {self.num_timesteps} replies; the records are in {RECORDS}")
