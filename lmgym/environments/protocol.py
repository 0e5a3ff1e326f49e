"""The interface of environments, the source of every reward in reinforcement learning.

Design decisions:
- An environment is plain synchronous Python, one episode an instance, text in and text out. It samples nothing and
  scores nothing: it requests scores (`ScoreRequest`), and the engine (lmgym/environments/engine.py) computes all
  scores of a step in one call.
- Agents with a pending observation act next: one, or several at once. Each has a player
  (lmgym/environments/players.py).
- The value after a terminated episode is 0; a truncated one was stopped early, so its last observation is valued.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lmgym.data.prompts import Task
from lmgym.generation.prompt_fitting import FittedPrompt
from lmgym.generation.protocol import Completion
from lmgym.text import Conversation, Turn

POLICY = "policy"  # the agent of environments with a single one


@dataclass(frozen=True)
class Observation:
    """The prompt of an agent: a conversation, rendered by the policy's template, or a plain text."""

    prompt: Conversation | str
    actions: Sequence[str] = ()
    """the replies that the game allows; empty: any text. A policy over text may still say something else"""

    @property
    def conversation(self) -> Conversation:
        """The prompt for players that read only conversations: a text is one turn of the user."""
        return Conversation((Turn("user", self.prompt),)) if isinstance(self.prompt, str) else self.prompt


@dataclass(frozen=True)
class Action:
    """A reply of an agent, and its source."""

    text: str
    completion: Completion | None = None
    """of a generator"""
    prompt: FittedPrompt | None = None
    """as a policy in training read it: the action is then a step of the agent's episode"""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """for the record, such as the samples that a best-of-n player did not choose"""
    error: str = ""
    """why there is none, as of a server that does not answer: the episode ends as failed"""


@dataclass(frozen=True)
class ScoreRequest:
    """A reply to score; the score is added to the agent's reward of this step."""

    agent: str
    prompt: Conversation | str
    reply: str
    columns: Task = field(default_factory=dict)
    """of the task, such as a reference answer"""


@dataclass(frozen=True)
class StepResult:
    """The result of the actions: the next observations and the rewards, by agent."""

    observations: Mapping[str, Observation] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    """stopped early, as by a time limit: `observations` are those that would come next"""
    info: Mapping[str, float] = field(default_factory=dict)
    """numbers to log, from the last step"""
    score_requests: Sequence[ScoreRequest] = ()
    restarted: bool = False
    """the episode began anew: its agents' former actions leave no steps"""


class NoRoom(Exception):
    """Raised by `reset` of an environment whose server has no room for another episode: it begins once another ends."""


class EpisodeFailed(RuntimeError):
    """An episode that cannot go on, with the reason: it has no reward."""


class Environment(Protocol):
    """One episode.

    An environment that waits for a server, a person or a subprocess has the attribute `blocking = True`: its `reset`
    and `step` run in a thread, in parallel with those of other episodes. If it has a `close`, that is called once its
    episode has ended.
    """

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begin an episode. All randomness is a function of (task, seed)."""
        ...

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the reply of every agent that had an observation."""
        ...


@dataclass(frozen=True)
class Sample:
    """A score request and its completion: the input of a reward function."""

    request: ScoreRequest
    prompt_text: str
    """as the policy read it"""
    completion: Completion
    group: Hashable = None
    """equal for the replies that are compared with each other: of one agent in the episodes of one task and seed; None
    in an evaluation, whose replies stand alone"""


@dataclass(frozen=True)
class SampleReward:
    """A reward of a reply, or of each sampled token; None with an `error` if the reward failed."""

    reward: float | tuple[float, ...] | None
    scores: Mapping[str, float] = field(default_factory=dict)
    """raw scores by scorer, for the table of samples"""
    error: str = ""


class RewardFunction(Protocol):
    """The source of rewards for replies."""

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample, in order. Not collective: the caller decides if too many have failed."""
        ...
