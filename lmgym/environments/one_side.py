"""A game of two players as one of a policy against an opponent, who changes sides from task to task."""

from collections.abc import Mapping
from typing import final

from lmgym.environments.protocol import POLICY, Environment, Observation, StepResult, Task

OPPONENT = "opponent"
SIDE = "side"


@final
class OneSide:
    """The agent that `task["side"]` names is "policy", the other one "opponent".

    `info`: that of the game, and unless the end is scored, the policy's return, as `return_SIDE`, with whether it won
    and lost.
    """

    def __init__(self, environment: Environment, sides: tuple[str, str]) -> None:
        self.environment, self.sides = environment, sides
        self.blocking = getattr(environment, "blocking", False)
        self.side, self.total = "", 0.0

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin a game in which the policy has its side."""
        self.side, self.total = task[SIDE], 0.0
        assert self.side in self.sides
        return self._renamed(self.environment.reset(task, seed))

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the reply of the player to move, or of both."""
        other = self.sides[self.side == self.sides[0]]
        names = {POLICY: self.side, OPPONENT: other}
        result = self.environment.step({names[agent]: reply for agent, reply in actions.items()})
        rewards = self._renamed(result.rewards)
        self.total += rewards.get(POLICY, 0.0)
        info = {f"return_{self.side}": self.total, "won": float(self.total > 0), "lost": float(self.total < 0)}
        requests = [one for one in result.score_requests if one.agent == self.side]
        if requests:
            info = {}
        return StepResult(
            self._renamed(result.observations),
            rewards,
            result.terminated,
            result.truncated,
            {**result.info, **info},
            [type(one)(POLICY, one.prompt, one.reply, one.columns) for one in requests],
        )

    def _renamed(self, by_agent: Mapping) -> dict:
        return {POLICY if agent == self.side else OPPONENT: value for agent, value in by_agent.items()}


def both_sides(sides: tuple[str, str], number: int = 2) -> list[Task]:
    """So many tasks, in which the policy has either side in turn."""
    return [{SIDE: sides[i % 2]} for i in range(number)]
