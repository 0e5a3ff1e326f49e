"""A reward in plain Python: a reply's pleasant words less its unpleasant ones; the KL holds the policy to its language.

deepspeed --num_gpus 2 ppo/experiments/sentiment_words.py --deepspeed configs/zero2.json --model PATH --prompts PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig, UpTo
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="sentiment_words",
    policy=ModelConfig(model="outputs/chat/model", precision="fp32"),
    rollout=RolloutConfig(prompts="outputs/world/logs.parquet"),
    method=MethodConfig(init_kl_coef=0.1),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=32, micro_batch=32, max_updates=UpTo(160)),
)


def sentiment(samples, prompts, outputs, tokenizer, **columns):  # trlx's signature; columns are those of the data
    worth = {"lovely": 1, "thank": 1, "glad": 1, "love": 1, "hate": -1, "boring": -1, "stupid": -1, "alone": -1}
    return [sum(worth.get(word.strip(".,!?"), 0) for word in reply.lower().split()) for reply in outputs]


if __name__ == "__main__":
    config = override(CONFIG)
    from ppo.task_setups import text_with_function
    from ppo.train import train

    launch(lambda: train(config, text_with_function(sentiment, as_text=False)))
