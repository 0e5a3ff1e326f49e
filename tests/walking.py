"""A small environment with Gymnasium's interface, and an agent for it, for tests of agents."""

from typing import Any

import numpy as np

from lmgym.agents import Agent

LONGEST = 4


class Walk:
    """From 0 to 3 by steps of 0 or 1, each seen as a position; a step earns a random number of the seed's."""

    def __init__(self, limit: int | None = 100) -> None:
        self.limit = limit
        """of steps; None: drawn by the seed, some before the end"""

    def reset(self, seed: int | None = None) -> tuple[int, dict]:
        self.chance, self.place, self.steps = np.random.default_rng(seed), 0, 0
        self.most = self.limit or int(self.chance.integers(2, 6))
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict]:
        assert action in (0, 1)
        self.place, self.steps = self.place + 1, self.steps + 1
        over = self.place == LONGEST
        return self.place, action + self.chance.normal(), over, not over and self.steps >= self.most, {}


class Walker(Agent):
    """Reads the parity of the reply's length; a length that 3 divides is no action."""

    def get_system_prompt(self) -> str:
        return "this is what they were"

    def format_observation(self, observation: Any) -> str:
        return f"I am at {observation}"

    def extract_action(self, response: str) -> int | None:
        return None if len(response) % 3 == 0 else len(response) % 2


def play(agent: Agent, env: Walk, seed: int | None = None, most: int = 20) -> dict[str, float]:
    """An episode by a program's own loop; what `terminate_episode` returned."""
    observation, _ = env.reset(seed=agent.current_episode_seed if seed is None else seed)
    for _ in range(most):
        action = agent.act(observation)
        if action is None:
            continue
        observation, reward, terminated, truncated, _ = env.step(action)
        agent.assign_reward(reward)
        if terminated:
            return agent.terminate_episode()
        if truncated:
            break
    return agent.terminate_episode(next_observation=observation)
