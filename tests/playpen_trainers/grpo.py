"""GRPO of an adapter by self-play at the first turn of each instance: a reply is worth what the game makes of it."""

import trl
from clemcore.backends.huggingface_local_api import HuggingfaceLocalModel
from clemcore.clemgame import GameRegistry
from datasets import Dataset
from peft import LoraConfig
from playpen import BasePlayPen, make_env


class FirstTurnTrainer(BasePlayPen):
    def __init__(self, learner: HuggingfaceLocalModel):
        super().__init__(learner)

    def learn(self, game_registry: GameRegistry):
        [game_spec] = game_registry.get_game_specs_that_unify_with("word_guess")
        with make_env(game_spec, [self.learner], task_iterations=1) as env:
            rows, envs = [], []
            for number in range(2):
                _, context = env.observe()
                rows.append({"prompt": [context], "number": number})
                envs.append(env.fork(number))
                env.reset()

            def worth(completions, number, **_):
                rewards = []
                for [message], place in zip(completions, number, strict=True):
                    done, info = envs[place].fork(0).step(message["content"])
                    rewards.append(info["episode_score"] if done else 0.5)
                return rewards

            trainer = trl.GRPOTrainer(
                model=self.learner.model,
                processing_class=self.learner.tokenizer,
                reward_funcs=worth,
                train_dataset=Dataset.from_list(rows),
                args=trl.GRPOConfig(
                    output_dir=f"models/grpo+lora/{self.learner.get_name()}",
                    per_device_train_batch_size=2,
                    num_generations=2,
                    max_completion_length=8,
                    max_steps=1,
                    bf16=False,
                    use_cpu=True,
                    report_to=[],
                ),
                peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
            )
            trainer.train()
