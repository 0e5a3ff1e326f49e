"""DPO on branches of games: of the replies at one point of a game, the best against the worst; ties are left out.

playpen run examples/trl/dpo_trainer.py -l smollm2-135m -t mock -> models/dpo+lora/smollm2-135m/checkpoint-N

Further flags are settings of lmgym train preference.
"""

from pathlib import Path

from lmgym.apps.playpen.playing import close_games
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import BasePlayPen, open_games
from lmgym.apps.playpen.trainers.branches import branch_pairs
from lmgym.apps.playpen.trainers.checkpoints import keep_checkpoint, learner_source, with_flags
from lmgym.apps.playpen.trainers.learning_games import learning_tasks
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.runs.files import write_lines
from preferences.config import LossConfig, PreferenceConfig
from preferences.train import train

BRANCHES = 4  # replies at each point
MOST_TASKS = 20  # instances of each game


class DpoTrainer(BasePlayPen):
    """DPO of an adapter."""

    takes_flags = True

    def learn(self, game_registry: GameRegistry) -> None:
        """Play, branch, train, and print the entry that makes the adapter playable."""
        folder = Path("models/dpo+lora") / self.learner.name
        source = learner_source(self.learner)
        games = open_games(game_registry)
        try:
            tasks = learning_tasks(
                games,
                self_play=self.teacher is None,
                teacher=self.teacher.name if self.teacher else "",
                most=MOST_TASKS,
            )
            pairs = branch_pairs(self.learner, self.teacher, games, tasks, BRANCHES)
        finally:
            close_games(games)
        folder.mkdir(parents=True, exist_ok=True)
        write_lines(folder / "pairs.jsonl", pairs)
        config = PreferenceConfig(
            name="dpo_trainer",
            policy=ModelConfig(model=source.model, precision="fp32", lora_rank=64, lora_alpha=64),
            data=RowsConfig(str(folder / "pairs.jsonl"), eval_size=0.1, max_length=source.context),
            loss=LossConfig("dpo", beta=0.1),
            optimizer=OptimizerConfig(5e-6, global_batch=8, micro_batch=2, epochs=1.0),
            samples=SamplesConfig(sample_prompts=0),
            run=RunConfig(output=str(folder), save_updates=-1, tracking="none"),
        )
        folder = train(with_flags(config, self.flags, folder))
        keep_checkpoint(self.learner, folder, "adapter", "dpo")
