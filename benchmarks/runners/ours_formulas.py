"""Our advantages, losses and gradients of given log-probabilities and rewards: runners/trl_formulas.py is its peer.

By `gather`, `advantage_estimator` and the learner, with a model that returns the given numbers.
"""

from interface import parse_paths  # isort: skip  (before torch)

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lmgym.config import OptimizerConfig
from lmgym.environments.episodes import Episode, Step
from lmgym.generation.protocol import Completion
from ppo.algorithms.losses import sampler_weights
from ppo.config import MethodConfig, PPOConfig, RewardConfig, RolloutConfig
from ppo.rollouts import Rollouts, gather
from ppo.setup import make_estimator, make_learner


class GivenModel:
    """An engine whose forward returns given numbers of the replies that it is asked for: a reply's ids are its number.

    Collects gradients; changes nothing.
    """

    module = SimpleNamespace(critic=None)
    allows_partial_backward = True

    def __init__(self, replies: dict[str, list]) -> None:
        self.logprobs, self.entropies = (
            [torch.tensor(row, requires_grad=True) for row in replies[name]] for name in ("logprobs", "entropies")
        )

    def __call__(self, rows, targets: torch.Tensor, *args, entropies: bool = False, **kwargs):
        """Log-probabilities [M], no values, and entropies [M] if they are wanted."""
        numbers = targets.unique_consecutive().tolist()
        found = torch.cat([self.logprobs[i] for i in numbers])
        return found, None, torch.cat([self.entropies[i] for i in numbers]) if entropies else None

    def set_learning_rate(self, learning_rate: float, freeze: bool = False) -> None: ...

    def backward(self, loss: torch.Tensor, last: bool = True) -> None:
        loss.backward()

    def step(self) -> bool:
        return True


def our_config(case: dict[str, Any]) -> PPOConfig:
    """The case in our words."""
    ours, settings, count = case["ours"], case["settings"], len(case["replies"]["logprobs"])
    return PPOConfig(
        name="formulas",
        rollout=RolloutConfig(
            num_rollouts=count,
            num_generations=settings["num_generations"],
            max_new_tokens=settings["max_completion_length"],
        ),
        reward=RewardConfig(**ours.get("reward", {})),
        method=MethodConfig(**ours["method"]),
        optimizer=OptimizerConfig(global_batch=count, micro_batch=count // case["accumulation_steps"]),
    )


def make_rollouts(replies: dict[str, list], config: PPOConfig) -> Rollouts:
    """The replies as episodes of one step; `old` and `reference` log-probabilities are as if measured."""
    episodes = []
    for number, (sampled, [reward], truncated) in enumerate(
        zip(replies["sampler"], replies["rewards"], replies["truncated"], strict=True)
    ):
        completion = Completion("", "length" if truncated else "stop", (number,) * len(sampled), tuple(sampled))
        episodes.append(Episode(number, "policy", [Step([0], "", completion, reward)], True, False, None, {}))
    groups = np.arange(len(episodes)) // config.algorithm.num_generations
    overlong = config.algorithm.overlong_penalty, config.rollout.max_new_tokens
    rollouts = gather(episodes, config.reward, 0, groups, None, *overlong)
    rollouts.old_logprobs, rollouts.reference_logprobs = (
        torch.tensor([x for row in replies[name] for x in row]) for name in ("old", "reference")
    )
    given = rollouts.old_logprobs, rollouts.sampler_logprobs, torch.from_numpy(rollouts.reply_lengths)
    rollouts.correction = sampler_weights(*given, *config.correction)
    return rollouts


def run_case(case: dict[str, Any]) -> dict[str, Any]:
    """Advantages [replies], correction [replies][tokens], loss of an update, gradients [replies][tokens]."""
    replies, config = case["replies"], our_config(case)
    rollouts = make_rollouts(replies, config)
    make_estimator(config)(rollouts, config.algorithm.init_kl_coef)
    model = GivenModel(replies)
    learner = make_learner(config, model, lambda _: 0.0, torch.device("cpu"), refuse_non_finite)
    [update] = learner.learn(rollouts, 0, 0).curve
    lengths = rollouts.reply_lengths.tolist()
    return {
        "advantages": [row[0].item() for row in rollouts.advantages.split(lengths)],
        "correction": [row.tolist() for row in rollouts.correction.split(lengths)],
        "loss": update["policy_loss"],
        "gradients": gradients_of(model.logprobs),
        "entropy_gradients": gradients_of(model.entropies),
    }


def gradients_of(leaves: Sequence[torch.Tensor]) -> list[list[float]]:
    """0 where there is none."""
    return [torch.zeros_like(leaf).tolist() if leaf.grad is None else leaf.grad.tolist() for leaf in leaves]


def refuse_non_finite(update: int, what: str, names: list[str]) -> None:
    raise RuntimeError(f"{what} in {names}")


def main() -> None:
    paths = parse_paths()
    spec = json.loads(Path(paths.spec).read_text())
    found = {case["name"]: run_case(case) for case in spec["cases"]}
    Path(paths.result).write_text(json.dumps({"cases": found}))


if __name__ == "__main__":
    main()
