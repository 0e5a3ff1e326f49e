"""SFT with LoRA on the rows of examples/trl/results.jsonl whose game succeeded; only the adapter is saved.

playpen run examples/trl/sft_trainer_lora.py -l smollm2-135m -> models/sft+lora/smollm2-135m/checkpoint-N

With -g only on the rows of those games. Further flags are settings of lmgym train sft: -- --max_updates 100.
"""

from pathlib import Path

from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.trainers.base import BasePlayPen
from lmgym.apps.playpen.trainers.checkpoints import (
    corrected_modules,
    keep_checkpoint,
    learner_source,
    successful_rows,
    with_flags,
)
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig, TrainerConfig
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train

ROWS = Path(__file__).with_name("results.jsonl")
MODULES_TO_SAVE = "lm_head,embed_token"  # as Playpen has it: no model has an embed_token, and the name is corrected


class PeftSftTrainer(BasePlayPen):
    """SFT of an adapter, with the embeddings and the head in full."""

    takes_flags = True

    def learn(self, game_registry: GameRegistry) -> None:
        """Train, and print the entry that makes the adapter playable."""
        folder = Path("models/sft+lora") / self.learner.name
        source = learner_source(self.learner)
        modules = corrected_modules(source.model, MODULES_TO_SAVE)
        rows = successful_rows(ROWS, folder, game_registry)
        config = SftConfig(
            name="sft_trainer_lora",
            policy=ModelConfig(
                model=source.model, precision="fp32", lora_rank=16, lora_alpha=32, modules_to_save=modules,
                load_in_4bit=source.bits == 4, load_in_8bit=source.bits == 8,
            ),
            data=RowsConfig(str(rows), eval_size=0.2, max_length=source.context),
            optimizer=OptimizerConfig(2e-4, global_batch=8, micro_batch=2, epochs=3.0, split_seed=42),
            samples=SamplesConfig(sample_prompts=0),
            run=RunConfig(output=str(folder), save_updates=-1, tracking="none"),
            trainer=TrainerConfig(lora_dropout=0.05),
        )  # fmt: skip
        folder = train(with_flags(config, self.flags, folder), CHAT)
        keep_checkpoint(self.learner, folder, "adapter", "sft-lora")
