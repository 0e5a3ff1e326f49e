"""SFT on the rows of examples/trl/results.jsonl whose game succeeded: all weights, all of the model's turns.

playpen run examples/trl/sft_trainer_simple.py -l smollm2-135m -> models/sft/smollm2-135m/checkpoint-N

With -g only on the rows of those games. Further flags are settings of lmgym train sft: -- --max_updates 100.
"""

from pathlib import Path

from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import BasePlayPen
from lmgym.apps.playpen.trainers.checkpoints import keep_checkpoint, learner_source, successful_rows, with_flags
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train

ROWS = Path(__file__).with_name("results.jsonl")


class SimpleSftTrainer(BasePlayPen):
    """SFT of all weights."""

    takes_flags = True

    def learn(self, game_registry: GameRegistry) -> None:
        """Train, and print the entry that makes the model playable."""
        folder = Path("models/sft") / self.learner.name
        source = learner_source(self.learner)
        rows = successful_rows(ROWS, folder, game_registry)
        config = SftConfig(
            name="sft_trainer_simple",
            policy=ModelConfig(model=source.model, precision="fp32"),
            data=RowsConfig(str(rows), eval_size=0.2, max_length=source.context),
            optimizer=OptimizerConfig(2e-5, global_batch=8, micro_batch=2, epochs=3.0, split_seed=42),
            samples=SamplesConfig(sample_prompts=0),
            run=RunConfig(output=str(folder), save_updates=-1, tracking="none"),
        )
        folder = train(with_flags(config, self.flags, folder), CHAT)
        keep_checkpoint(self.learner, folder, "model", "sft")
