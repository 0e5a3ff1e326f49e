"""Two games an iteration, of which one asks the policy: of two ranks one has no reply at all.

python absent_agents_script.py MODEL OUTPUT METHOD
"""

import sys

from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.environments.protocol import Observation, StepResult
from lmgym.generation.protocol import ScriptedGenerator
from lmgym.runs.launch import launch
from ppo.config import CriticConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.task_setups import TaskSetup
from ppo.train import train


class Dispute:
    """A witness says something; in some games a judge then does, and they break off, as at a time limit."""

    def reset(self, task, seed):
        self.asks = task["asks"]
        return {"witness": Observation("what was it? ")}

    def step(self, actions):
        if "judge" in actions:
            after = {"judge": Observation("and then? ")}
            return StepResult(after, {"judge": float(len(actions["judge"]) % 3)}, truncated=True)
        if self.asks:
            return StepResult({"judge": Observation(f"{actions['witness']} so? ")})
        return StepResult({}, {"judge": 1.0}, terminated=True)


def disputes(config, tokenizer):
    tasks = [{"asks": True}, {"asks": False}]
    return TaskSetup(tasks, tasks, Dispute, None, "disputes", players={"witness": ScriptedGenerator(["a lamp"])})


if __name__ == "__main__":
    model, output, method = sys.argv[1:]
    members = 1 if method == "ppo" else 2
    config = PPOConfig(
        "disputes",
        ModelConfig(model, precision="fp32"),
        RolloutConfig(num_rollouts=2 * members, num_generations=members, max_new_tokens=4),
        method=MethodConfig(method, num_layers_unfrozen=1),
        critic=CriticConfig(),
        optimizer=OptimizerConfig(1e-3, global_batch=2 * members, micro_batch=2, max_updates=8),
        run=RunConfig(output, tracking="none", save_updates=-1, eval_updates=9999),
    )
    launch(lambda: train(config, disputes))
