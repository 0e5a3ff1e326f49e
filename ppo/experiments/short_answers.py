"""A real model against a reward of ten lines: short answers that end, name the topic and speak to the reader.

deepspeed --num_gpus 2 ppo/experiments/short_answers.py --deepspeed zero2 --model PATH --prompts PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="short_answers",
    policy=ModelConfig(model="outputs/models/smollm2-135m"),
    rollout=RolloutConfig(prompts="outputs/demo_real/prompts.jsonl", num_rollouts=64, max_new_tokens=40),
    method=MethodConfig("grpo", ppo_epochs=3, init_kl_coef=0.02, num_layers_unfrozen=2),
    optimizer=OptimizerConfig(2e-4, global_batch=64, micro_batch=16, max_updates=30),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.scoring.short_answers import short_answers
    from ppo.task_setups import text_with_function
    from ppo.train import train

    def reward(samples, prompts, outputs, tokenizer, topic, **columns):  # trlx's signature; the prompts have topics
        return short_answers(outputs, topic)

    launch(lambda: train(config, text_with_function(reward, as_text=False)))
