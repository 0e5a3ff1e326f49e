"""Episodes: the steps of trained agents, and an episode while it is played."""

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmgym.environments.protocol import Environment, Observation, StepResult
from lmgym.errors import InputError, one_line
from lmgym.generation.prompt_fitting import Said
from lmgym.generation.protocol import Completion
from lmgym.scoring.retries import Reward
from lmgym.text import Conversation


@dataclass(frozen=True)
class Step:
    """One action of a trained agent."""

    prompt: list[int]
    """ids that the policy read"""
    prompt_text: str
    """the rendered text of `prompt`; around earlier replies the ids may have other white space, as it was sampled"""
    completion: Completion
    reward: Reward | None = 0.0
    """of environment and reward function; one a sampled id if the latter is dense, with the environment's on the last;
    None if either failed: to be masked"""
    scores: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    dropped_turns: int = 0
    """oldest turns that the prompt leaves out"""
    shortened: int = 0
    """tokens cut from its last turn: see lmgym/data/truncation.py"""
    observed: Conversation | str = ""
    """the observation's prompt, before it was rendered and cut"""
    appended: bool = False
    """`prompt` begins with the ids of the agent's last prompt and reply, which were not tokenised again"""


@dataclass(frozen=True)
class Episode:
    """The steps of one agent in one episode, in order."""

    index: int
    """of the task in the request"""
    agent: str
    steps: list[Step]
    terminated: bool
    truncated: bool
    final_prompt: list[int] | None
    """of a truncated episode: ids of the agent's next observation, whose value to bootstrap from"""
    info: Mapping[str, float]
    seed: int = 0
    actions: Sequence[Mapping[str, str]] = ()
    """what each agent said, trained or not, by step of the environment: the first k of them begin a fork at step k"""

    @property
    def total_reward(self) -> float | None:
        """Sum of the steps' rewards; None if one failed."""
        rewards = [step.reward for step in self.steps]
        if any(reward is None for reward in rewards):
            return None
        return float(sum(sum(r) if isinstance(r, tuple) else r for r in rewards if r is not None))


@dataclass
class RunningEpisode:
    """An episode while it is played."""

    index: int
    seed: int
    environment: Environment
    member: int = 0
    """its number among the episodes of this seed"""
    result: StepResult = field(default_factory=StepResult)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """by trained agent"""
    actions: list[Mapping[str, str]] = field(default_factory=list)
    """of all agents, by step"""

    def __str__(self) -> str:
        return f"episode {self.index} (seed {self.seed}) of {type(self.environment).__name__}, step {self.step_number}"

    @property
    def step_number(self) -> int:
        """Number of steps that the environment has taken."""
        return len(self.actions)

    def acted_only_in_beginning(self, agent: str) -> bool:
        """True of an agent that only replayed actions, so that there is no step to reward."""
        return agent not in self.steps and any(agent in actions for actions in self.actions)

    @property
    def observations(self) -> Mapping[str, Observation]:
        """Observations of the agents that act next."""
        return self.result.observations

    @property
    def ended(self) -> bool:
        """True if terminated or truncated."""
        return self.result.terminated or self.result.truncated

    def receive(self, result: StepResult) -> None:
        """Take the environment's result. Raises InputError for one that breaks the protocol."""
        if not isinstance(result, StepResult):
            raise InputError(
                f"{self}: `step` gave a {type(result).__name__}; needed: a StepResult, which Gymnasium's tuples become "
                "as in lmgym/environments/blackjack.py"
            )
        self.result = result
        if result.restarted:
            self.steps.clear()
        shown = self.observations.values() if isinstance(self.observations, Mapping) else [self.observations]
        if wrong := [type(observation).__name__ for observation in shown if not isinstance(observation, Observation)]:
            raise InputError(
                f"{self}: a {wrong[0]} is observed; needed: {{agent: Observation(prompt)}} for all agents that act next"
            )
        if not (self.observations or self.ended):
            raise InputError(
                f"{self}: no agent has an observation and the episode has not ended; needed: an observation for the "
                "agent that acts next, or terminated or truncated"
            )

    def fail(self, error: Exception) -> None:
        """End the episode after an exception of its environment: its agents' rewards are None, to be masked.

        Raises the exception if no trained agent has acted, because there is nothing to mask.
        """
        if not self.steps:
            raise error
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        self._end(f"{self}: {type(error).__name__}: {one_line(str(error))}{place}")

    def _end(self, error: str) -> None:
        for agent in self.steps:
            self.add_reward(agent, None, error=error)
        self.result = StepResult(terminated=True)

    def latest_step(self, agent: str) -> Step:
        """The agent's latest step. Raises InputError if it has none."""
        if agent not in self.steps:
            raise InputError(
                f"{self}: a reward or a score request for {agent!r}, who has not acted; needed: one of "
                f"{sorted(self.steps)}"
            )
        return self.steps[agent][-1]

    def last_said(self, agent: str) -> Said | None:
        """What the agent read and replied at its latest step; None without one, and if its prompt was truncated."""
        step = self.steps[agent][-1] if agent in self.steps else None
        if step is None or step.dropped_turns or step.shortened:
            return None
        return Said(step.prompt, step.prompt_text, step.completion)

    def add_environment_reward(self, agent: str, reward: float) -> None:
        """Add an environment's reward to the agent's latest step; one that is not finite ends the episode as failed.

        Raises InputError for what is no number.
        """
        needed = f"{self}: a reward of {reward} for {agent!r}; needed: a finite number"
        if not hasattr(reward, "__float__"):
            raise InputError(needed)
        if math.isfinite(reward):
            self.add_reward(agent, float(reward))
        else:
            self.latest_step(agent)  # refuses an agent that has not acted
            self._end(needed)

    def add_reward(
        self, agent: str, reward: Reward | None, scores: Mapping[str, float] | None = None, error: str = ""
    ) -> None:
        """Add a reward, scores and an error to the agent's latest step. Raises ValueError for a wrong dense length."""
        step = self.latest_step(agent)
        if isinstance(reward, tuple) and len(reward) != len(step.completion.ids):
            raise ValueError(
                f"{self}: the reward function gave {len(reward)} rewards for a reply of {len(step.completion.ids)} "
                "tokens; needed: one a token"
            )
        self.steps[agent][-1] = replace(
            step,
            reward=_add(step.reward, reward),
            scores={**step.scores, **(scores or {})},
            error="; ".join(filter(None, (step.error, error))),
        )


def _add(reward: Reward | None, other: Reward | None) -> Reward | None:
    """The sum of two rewards of a step; a single number is added to the last of dense ones."""
    if reward is None or other is None:
        return None
    if isinstance(reward, tuple) and isinstance(other, tuple):
        return tuple(a + b for a, b in zip(reward, other, strict=True))
    if isinstance(reward, tuple):
        reward, other = other, reward
    assert not isinstance(reward, tuple)
    return (*other[:-1], other[-1] + reward) if isinstance(other, tuple) else reward + other
