"""A small policy from scratch as the guesser of a dialogue game with words of syllables; a script describes them.

lmgym train ppo dialogue_games --environment 'dialogue:word_guess_clue_syllables/guesser?instances=48'
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import LimitConfig, MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="dialogue_games",
    policy=ModelConfig(model="outputs/games", precision="fp32"),
    rollout=RolloutConfig(
        environment="dialogue:taboo_syllables/guesser?instances=48", num_rollouts=256, max_new_tokens=10, eval_size=48
    ),
    method=MethodConfig(method="grpo", init_kl_coef=0.0, ppo_epochs=1),
    limits=LimitConfig(max_kl=0.0),
    optimizer=OptimizerConfig(1e-3, schedule="linear", global_batch=64, micro_batch=64, max_updates=640),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.games.dialogue.syllables import with_small_policy
    from ppo.named_environments import environment_episodes
    from ppo.train import train

    launch(lambda: train(with_small_policy(config, CONFIG.policy.model), environment_episodes))
