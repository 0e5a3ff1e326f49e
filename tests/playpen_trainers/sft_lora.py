"""SFT of an adapter, in the form of Playpen's later trainers, whose `learn` takes no registry."""

import trl
from clemcore.backends.huggingface_local_api import HuggingfaceLocalModel
from datasets import load_dataset
from peft import LoraConfig
from playpen import BasePlaypenTrainer


class AdapterTrainer(BasePlaypenTrainer):
    def __init__(self, learner: HuggingfaceLocalModel):
        super().__init__(learner)

    def learn(self):
        rows = load_dataset("json", data_files="results.jsonl", split="train")
        trainer = trl.SFTTrainer(
            model=self.learner.model,
            train_dataset=rows.filter(lambda row: row["meta"]["outcome"] == "success"),
            args=trl.SFTConfig(
                max_length=300,
                output_dir=f"models/sft+lora/{self.learner.name}",
                max_steps=1,
                bf16=False,
                use_cpu=True,
                report_to=[],
            ),
            peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.train()
