"""Debate by self-play before a judge that counts a letter: P(win) is the share of all l in the debater's own speech.

lmgym train ppo debate_letters --model outputs/demo/policy/model
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="debate_letters",
    policy=ModelConfig(model="outputs/demo/policy/model", lora_rank=32, lora_alpha=64, precision="fp32"),
    rollout=RolloutConfig(prompts="synthetic", num_rollouts=128, num_generations=8, max_new_tokens=32, eval_size=64),
    method=MethodConfig("grpo", ppo_epochs=2, init_kl_coef=0.0),
    limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(1e-2, global_batch=64, micro_batch=64, max_updates=96),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.debate.formats import debate
    from lmgym.apps.debate.players.judges import LetterJudge
    from lmgym.apps.debate.prompts.short import PROMPTS
    from lmgym.apps.debate.synthetic import synthetic_questions
    from lmgym.apps.debate.training.ppo_setup import debate_rounds
    from ppo.train import train

    questions = synthetic_questions(512, seed=config.optimizer.split_seed)
    launch(lambda: train(config, debate_rounds(questions, debate(rounds=1), PROMPTS, LetterJudge("l"))))
