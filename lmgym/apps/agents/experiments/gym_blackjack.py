"""An agent of lmgym.agents plays many hands of Gymnasium's Blackjack-v1 at once.

deepspeed --num_gpus 2 lmgym/apps/agents/experiments/gym_blackjack.py --deepspeed configs/zero2.json --model PATH
"""

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from ppo.config import MethodConfig, PPOConfig, RolloutConfig

CONFIG = PPOConfig(
    name="gym_blackjack",
    policy=ModelConfig(model="outputs/models/smollm2-135m", precision="fp32"),
    rollout=RolloutConfig(eval_size=256, num_rollouts=64, max_new_tokens=8),
    method=MethodConfig(init_kl_coef=0.02),
    optimizer=OptimizerConfig(1e-5, schedule="linear", global_batch=32, micro_batch=16, max_updates=400),
)

if __name__ == "__main__":
    config = override(CONFIG)
    from lmgym.apps.agents.blackjack import BlackjackAgent
    from lmgym.apps.agents.training import agent_episodes
    from ppo.train import train

    launch(lambda: train(config, agent_episodes(BlackjackAgent, "Blackjack-v1", {"sab": False}, max_turns=12)))
