"""Replies with made-up log-probabilities and rewards, and the settings under which TRL and we train them.

Used by benchmarks/grpo_formulas.py. Numbers are drawn so that ratios pass every bound on both sides, lengths differ,
some replies are truncated, and a group has equal rewards.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

GROUPS, GENERATIONS, MOST_TOKENS = 3, 4, 8
TRUNCATED = (2, 9)
FAILED = (1, 8)

Replies = dict[str, list]
"""logprobs, old, sampler, reference, entropies: [reply][token]; rewards: [reply][function], None where it failed;
truncated: [reply]"""


@dataclass(frozen=True)
class Case:
    """A way to train, in TRL's words and in ours. TRL's settings that are not named are those of `make_settings`."""

    name: str
    trl: dict[str, Any]
    """of its config"""
    ours: dict[str, Any]
    """of our config's groups"""
    trainer: str = "grpo"
    """grpo or rloo: TRL's"""
    accumulation_steps: int = 1
    on_policy: bool = False
    """old log-probabilities are the present ones"""
    failed: bool = False
    """some rewards failed"""
    compared: tuple[str, ...] = ("advantages", "loss", "gradients")
    loss_factor: float = 1.0
    """of ours, by definition"""

    def replies(self) -> Replies:
        """What is trained."""
        found = make_replies()
        if self.on_policy:
            found["old"] = found["logprobs"]
        if self.failed:
            found["rewards"] = [[None] if i in FAILED else row for i, row in enumerate(found["rewards"])]
        return found

    def spec(self) -> dict[str, Any]:
        """For benchmarks/runners/trl_formulas.py."""
        return {
            "name": self.name,
            "trainer": self.trainer,
            "settings": make_settings(self.trainer) | self.trl,
            "accumulation_steps": self.accumulation_steps,
            "corrects_sampler": "vllm_importance_sampling_mode" in self.trl,
            "replies": self.replies(),
        }


def make_settings(trainer: str) -> dict[str, Any]:
    """TRL's settings of every case."""
    settings = {"num_generations": GENERATIONS, "max_completion_length": MOST_TOKENS, "beta": 0.0}
    return settings if trainer == "rloo" else {**settings, "use_bias_correction_kl": False}


def make_replies(seed: int = 0) -> Replies:
    """GROUPS prompts with GENERATIONS replies of 2 to MOST_TOKENS - 1 tokens each; a single reward function."""
    rng = np.random.default_rng(seed)
    count = GROUPS * GENERATIONS
    lengths = rng.integers(2, MOST_TOKENS, count)
    logprobs = [-rng.uniform(0.05, 4, n) for n in lengths]
    spread = {"old": 0.25, "sampler": 0.35, "reference": 0.5}
    found: Replies = {
        name: [(row + rng.normal(0, width, len(row))).astype(np.float32).tolist() for row in logprobs]
        for name, width in spread.items()
    }
    found["logprobs"] = [row.astype(np.float32).tolist() for row in logprobs]
    found["entropies"] = [rng.uniform(0.1, 5, n).astype(np.float32).tolist() for n in lengths]
    rewards = rng.normal(0, 1, count).round(3)
    rewards[-GENERATIONS:] = 0.5  # a group of equal rewards
    found["rewards"] = [[reward] for reward in rewards.tolist()]
    found["truncated"] = [i in TRUNCATED for i in range(count)]
    return found
