"""DPO on games that branch, in the form of Playpen's later trainers."""

from pathlib import Path

import trl
from clemcore.backends import Model
from clemcore.clemgame import (
    EpochResultsFolder,
    EpochResultsFolderCallback,
    ExperimentFileSaver,
    GameBenchmark,
    GameBenchmarkCallbackList,
    GameInstances,
    GameRegistry,
    InstanceFileSaver,
    InteractionsFileSaver,
)
from clemcore.clemgame.runners import branching
from peft import LoraConfig
from playpen import BasePlayPen, to_instances_filter
from playpen.buffers import BranchingEpisodeBuffer
from playpen.callbacks.buffers import BranchingEpisodeBufferCallback


class BranchingDpoTrainer(BasePlayPen):
    def __init__(self, learner: Model, teacher: Model):
        super().__init__(learner, teacher)
        self.episode_buffer = BranchingEpisodeBuffer()
        folder = EpochResultsFolder(Path("playpen-records-branching"), Model.to_identifier([learner, teacher]))
        infos = Model.to_infos([learner, teacher])
        self.callbacks = GameBenchmarkCallbackList(
            [
                BranchingEpisodeBufferCallback(self.episode_buffer),
                EpochResultsFolderCallback(folder),
                InstanceFileSaver(folder),
                ExperimentFileSaver(folder, player_model_infos=infos),
                InteractionsFileSaver(folder, player_model_infos=infos, store_branches=True),
            ]
        )

    def learn(self, game_registry: GameRegistry):
        game_spec = game_registry.get_game_specs_that_unify_with("taboo")[0]
        rows = [{"game": "taboo", "experiment": "common", "task_id": number} for number in range(4)]
        with GameBenchmark.load_from_spec(game_spec) as game_benchmark:
            game_instances = GameInstances.from_game_spec(game_benchmark.game_spec)
            game_instances = game_instances.filter(to_instances_filter(rows))
            self.episode_buffer.reset()
            branching.run(
                game_benchmark,
                game_instances,
                [self.teacher, self.learner],
                callbacks=self.callbacks,
                branching_factor=2,
                branching_condition=branching.is_player_model(self.learner),
            )
        games = self.episode_buffer.to_conversational_dataset(self.learner)
        pairs = self.episode_buffer.to_preference_dataset(self.learner)
        print(f"{len(games)} branches, {len(pairs)} pairs")
        trainer = trl.DPOTrainer(
            model=self.learner.model,
            train_dataset=pairs,
            args=trl.DPOConfig(
                output_dir=f"models/dpo+lora/{self.learner.name}", max_steps=1, bf16=False, use_cpu=True, report_to=[]
            ),
            processing_class=self.learner.tokenizer,
            peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.train()
