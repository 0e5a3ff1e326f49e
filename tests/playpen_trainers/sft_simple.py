"""SFT of all weights on the won games of results.jsonl, in the form of Playpen's first trainer."""

import trl
from clemcore.backends.huggingface_local_api import HuggingfaceLocalModel
from clemcore.clemgame import GameRegistry
from datasets import load_dataset
from playpen import BasePlayPen


class WonGamesTrainer(BasePlayPen):
    def __init__(self, learner: HuggingfaceLocalModel):
        super().__init__(learner)

    def learn(self, game_registry: GameRegistry):
        rows = load_dataset("json", data_files="results.jsonl", split="train")
        rows = rows.filter(lambda row: row["meta"]["outcome"] == "success")
        split = rows.train_test_split(0.2, shuffle=True, seed=42)
        trainer = trl.SFTTrainer(
            model=self.learner.model,
            train_dataset=split["train"],
            eval_dataset=split["test"],
            args=trl.SFTConfig(
                max_length=300,
                output_dir=f"models/sft/{self.learner.get_name()}",
                max_steps=1,
                bf16=False,
                use_cpu=True,
                report_to=[],
            ),
        )
        trainer.train()
