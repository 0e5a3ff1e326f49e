"""A real model against a reward of ten lines: replies that speak to the reader and ask something.

deepspeed --num_gpus 2 ppo/experiments/friendly_answers.py --deepspeed zero2 --model PATH --prompts PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="friendly_answers",
    policy=ModelConfig(model="outputs/models/smollm2-135m"),
    rollout=RolloutConfig(
        prompts="examples/data/helpful_pairs.jsonl", num_rollouts=64, max_new_tokens=40, temperature=0.7
    ),
    method=MethodConfig("grpo", ppo_epochs=3, num_layers_unfrozen=2),
    optimizer=OptimizerConfig(3e-4, global_batch=64, micro_batch=16, max_updates=18),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.scoring.friendly_answers import friendly_answers
    from ppo.task_setups import text_with_function
    from ppo.train import train

    def reward(samples, prompts, outputs, tokenizer, **columns):  # trlx's signature
        return friendly_answers(outputs)

    launch(lambda: train(config, text_with_function(reward, as_text=False)))
