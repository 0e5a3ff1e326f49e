"""A desk with a tool: the policy looks prices up and replies to a customer, and a learned scorer judges the reply.

python3 examples/environments/desk.py --max_updates 100
"""

from transformers import AutoTokenizer

from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.protocol import POLICY, Observation, ScoreRequest, StepResult
from lmgym.models.small_models import make_small_model
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from lmgym.text import Conversation, Turn
from ppo.config import PPOConfig, RewardConfig, RolloutConfig
from ppo.task_setups import TaskSetup, load_scorer_reward

PRICES = {"lamp": "7", "chair": "4", "table": "9"}


class Desk:
    """A customer asks for a price, which a tool knows; a scorer judges the reply."""

    def reset(self, task, seed):
        self.turns, self.calls = [Turn("user", f"What does a {task['item']} cost?")], 0
        return self.ask()

    def ask(self):
        rules = "Write price and an item to look it up. Then reply to the customer."
        return {POLICY: Observation(Conversation(tuple(self.turns), persona=rules))}

    def step(self, actions):
        reply = actions[POLICY].strip()
        if reply.startswith("price ") and self.calls < 2:
            self.calls += 1
            self.turns += [Turn("bot", reply), Turn("tool", PRICES.get(reply.removeprefix("price "), "unknown"))]
            return StepResult(self.ask(), {POLICY: -0.1})  # a call costs a little
        asked = ScoreRequest(POLICY, Conversation(tuple(self.turns)), reply)
        return StepResult({}, terminated=True, info={"calls": self.calls}, score_requests=[asked])


def desk(config, tokenizer):
    reward, monitors = load_scorer_reward(config.reward)  # --scorers; --eval_scorer and --monitor_scorers only watch
    tasks = [{"item": item} for item in PRICES]
    return TaskSetup(tasks, tasks * 4, Desk, reward, fingerprint="desk", monitors=monitors)


def make_small_models():
    """A random policy, whose chat template writes tools, and a random reward model: folders of yours go here."""
    texts = [f"What does a {item} cost? It costs {price}." for item, price in PRICES.items()] * 20
    make_small_model("outputs/polite", "llama", texts, head="classifier")
    tokenizer = AutoTokenizer.from_pretrained(make_small_model("outputs/clerk", "llama", texts))
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token if m.role == 'assistant' }}\n{% endfor %}"
        "{{ 'assistant: ' if add_generation_prompt }}"
    )
    tokenizer.save_pretrained("outputs/clerk")


CONFIG = PPOConfig(
    name="desk",
    policy=ModelConfig(model="outputs/clerk", precision="fp32"),
    rollout=RolloutConfig(num_rollouts=16, max_new_tokens=8),
    reward=RewardConfig(scorers="polite=outputs/polite"),
    optimizer=OptimizerConfig(1e-3, global_batch=16, micro_batch=16, max_updates=100),
)

if __name__ == "__main__":
    config = override(CONFIG)
    if config.policy.model == CONFIG.policy.model:
        make_small_models()
    from ppo.train import train

    launch(lambda: train(config, desk))
