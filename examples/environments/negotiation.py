"""A buyer and a seller of a lamp name prices, up to three times; a judge is asked only if they do not meet.

The policy is one of the sides, and the judge; the rival is a script that gives way by 1 a round.

python3 examples/environments/negotiation.py --max_updates 100
"""

import re
from pathlib import Path

import numpy as np

from lmgym.apps.games.small_policy import imitate
from lmgym.config import ModelConfig, OptimizerConfig
from lmgym.environments.protocol import Observation, StepResult
from lmgym.environments.random_walks_model import made_once
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.runs.flags import override
from lmgym.runs.launch import launch
from lmgym.text import Conversation, Turn
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.task_setups import TaskSetup

SIDES, PRICES = ("buyer", "seller"), tuple("123456789")
RULES = {"buyer": "You buy a lamp.", "seller": "You sell a lamp.", "judge": "You are the judge."}


class Negotiation:
    """`task["rival"]` is the side of the script, whose agent is called "rival"."""

    def reset(self, task, seed):
        chance = np.random.default_rng(seed)
        self.fair, self.lamp = int(chance.integers(4, 7)), ("whole", "scratched")[chance.integers(2)]
        self.names = {side: "rival" if side == task["rival"] else side for side in SIDES}
        self.limits = {"buyer": self.fair + 2, "seller": self.fair - 2}
        first = {side: f"The lamp is {self.lamp}, and worth {self.limits[side]} to you. Your price?" for side in SIDES}
        self.turns = {side: (Turn("user", first[side]),) for side in SIDES}
        return self.ask_both()

    def ask_both(self):
        return {
            self.names[side]: Observation(Conversation(self.turns[side], persona=RULES[side]), actions=PRICES)
            for side in SIDES
        }

    def step(self, actions):
        if "judge" in actions:
            return self.end(*self.rule(actions["judge"].strip()))
        said = {side: actions[self.names[side]].strip() for side in SIDES}
        if silent := [side for side in SIDES if said[side] not in PRICES]:
            return StepResult({}, {self.names[side]: -2.0 for side in silent}, terminated=True, info={"gain": -2.0})
        self.prices = {side: int(price) for side, price in said.items()}
        if self.prices["buyer"] >= self.prices["seller"]:
            return self.end(sum(self.prices.values()) / 2)
        for side, other in (SIDES, SIDES[::-1]):
            answer = f"The {other} says {said[other]}. Your price?"
            self.turns[side] += (Turn("bot", said[side]), Turn("user", answer))
        if len(self.turns["buyer"]) < 7:
            return StepResult(self.ask_both())
        case = f"A {self.lamp} lamp. Who is right?"
        return StepResult({"judge": Observation(Conversation((Turn("user", case),), RULES["judge"]), SIDES)})

    def rule(self, winner):
        """(the price, the fee, the judge's reward): the winner's last price, but none that the loser cannot bear."""
        price = self.prices[winner if winner in SIDES else "seller"]
        right = winner == ("buyer" if self.lamp == "scratched" else "seller")
        return float(np.clip(price, self.limits["seller"], self.limits["buyer"])), 1.0, 1.0 if right else -1.0

    def end(self, price, fee=0.0, ruling=None):
        gains = {"buyer": self.limits["buyer"] - price - fee, "seller": price - self.limits["seller"] - fee}
        rewards = {self.names[side]: gain for side, gain in gains.items()}
        info = {"gain": rewards.get("buyer", rewards.get("seller"))}
        if ruling is not None:
            rewards["judge"] = info["ruling"] = ruling
        return StepResult({}, rewards, terminated=True, info=info)


def rival(conversation, chance):
    """Begins 2 beside the fair price, and gives way by 1 a round; each time it asks for 1 more by a chance of 10%."""
    limit = int(re.search(r"worth (\d)", conversation.turns[0].text)[1])
    margin = 4 - len(conversation.turns) // 2 + (chance.random() < 0.1)
    return str(limit - margin if conversation.persona == RULES["buyer"] else limit + margin)


def negotiations(config, tokenizer, environment=Negotiation):
    tasks = [{"rival": "seller"}, {"rival": "buyer"}]
    return TaskSetup(
        tasks,
        tasks * (int(config.rollout.eval_size) // 2),
        environment,
        reward_function=None,
        fingerprint="negotiations",
        players={"rival": ScriptedGenerator(rival)},
        trained_agents=2,
        eval_environment=Negotiation,
        eval_players={"rival": ScriptedGenerator(rival)},
    )


def start():
    """A small policy that plays random moves."""
    moves, chance = [], np.random.default_rng(0)
    for seed in range(1000):
        game = Negotiation()
        asked = game.reset({"rival": None}, seed)
        while asked:
            said = {agent: str(chance.choice(seen.actions)) for agent, seen in asked.items()}
            moves += [(seen.prompt, said[agent]) for agent, seen in asked.items()]
            asked = game.step(said).observations
    return imitate(moves)


CONFIG = PPOConfig(
    name="negotiation",
    policy=ModelConfig(model="outputs/negotiator", precision="fp32"),
    rollout=RolloutConfig(policy_over="actions", num_rollouts=256, max_new_tokens=2, eval_size=256),
    method=MethodConfig(init_kl_coef=0.0, ppo_epochs=1, entropy_coef=0.05),
    critic=CriticConfig(lam=1.0),
    limits=LimitConfig(max_kl=0.0, min_length=0.0),
    optimizer=OptimizerConfig(2e-3, schedule="linear", global_batch=128, micro_batch=128, max_updates=100),
)

if __name__ == "__main__":
    config = override(CONFIG)
    made_once(Path(config.policy.model), start)
    from ppo.train import train

    launch(lambda: train(config, negotiations))
