"""`AgentEnvironment`: an agent and an environment of Gymnasium's kind as one environment of the rollout engine."""

from collections.abc import Callable, Mapping
from typing import Any, final

from lmgym.apps.agents.agent import Agent
from lmgym.apps.agents.dialogue import conversation_of
from lmgym.config import Range
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import MOST_STEPS, InputError

TURNS = Range(1, MOST_STEPS)
MOST_TURNS = 200


@final
class AgentEnvironment:
    """An episode as `Agent.act` and a program's loop play it: the same messages, the same rules for invalid replies.

    `agent_class(None, None, "cpu")` plays without a model. `make_env` gives an environment with Gymnasium's `reset`
    and `step`; the seed of `reset` is its seed, the task is ignored. The environment is not stepped by a reply that is
    no action: its observation is shown again. Truncated by the environment, by the agent's `on_invalid`, or after
    `max_turns` replies. `info`: replies that were no action.
    """

    def __init__(
        self,
        agent_class: Callable[..., Agent],
        make_env: Callable[[], Any],
        max_turns: int = MOST_TURNS,
        has_system: bool = True,
    ) -> None:
        TURNS.check("max_turns", max_turns)
        self.agent, self.env = agent_class(None, None, "cpu"), make_env()
        if type(self.agent).act is not Agent.act or type(self.agent).llm is not Agent.llm:
            raise InputError(
                f"{type(self.agent).__name__} has an act or llm of its own, which is not called where many "
                "environments are played at once; needed: its work in format_observation and extract_action"
            )
        if self.agent.action_space is None:
            self.agent.action_space = getattr(self.env, "action_space", None)
        self.max_turns, self.has_system = max_turns, has_system
        self.observation: Any = None
        self.turns = self.invalid = 0

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin an episode."""
        self.turns = self.invalid = 0
        self.agent.start_episode()
        self.observation, _ = self.env.reset(seed=seed)
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Read the reply, and step the environment if it is an action."""
        outcome = self.agent.respond(actions[POLICY])
        self.turns += 1
        reward, terminated, truncated = outcome.reward, False, outcome.over
        if outcome.action is None:
            self.invalid += 1
        else:
            self.observation, earned, terminated, truncated, _ = self.env.step(outcome.action)
            self.agent.assign_reward(earned)
            reward += float(earned)
        truncated = not terminated and (truncated or self.turns >= self.max_turns)
        shown = {} if terminated else self._shown()
        return StepResult(shown, {POLICY: reward}, terminated, truncated, {"invalid": self.invalid})

    def _shown(self) -> dict[str, Observation]:
        self.agent.observe(self.observation)
        return {POLICY: Observation(conversation_of(self.agent.current_episode_messages, self.has_system))}
