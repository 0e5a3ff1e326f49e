"""Where episodes come from: what an environment shows, takes and gives back. Every source of reward trains through it.

Design decisions:
- An environment is plain synchronous Python, one episode an instance, text in and text out. It samples nothing and
  scores nothing: it requests scores (`ScoreRequest`), and the rollout engine
  (lmgym/environments/rollout_engine.py) scores all requests of a step in one call.
- Agents with a pending observation act next: one, or several at once. An agent that is not trained has a generator.
- A terminated episode is worth nothing more; a truncated one was merely stopped, so what it shows last is valued.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lmgym.data.prompts import Task
from lmgym.generation.protocol import Completion
from lmgym.text import Conversation

POLICY = "policy"  # what environments with one agent call it


@dataclass(frozen=True)
class Observation:
    """What an agent sees before it speaks: a conversation, rendered by the policy's template, or a text as it is."""

    prompt: Conversation | str


@dataclass(frozen=True)
class ScoreRequest:
    """A reply to be scored; its score is added to the agent's reward of this step."""

    agent: str
    prompt: Conversation | str
    reply: str
    columns: Task = field(default_factory=dict)
    """of the task, for rewards that compare with something"""


@dataclass(frozen=True)
class StepResult:
    """What came of the actions: the next observations by agent, and what each agent earned by acting."""

    observations: Mapping[str, Observation] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    """stopped from outside, as by a limit of time: `observations` show what would come next"""
    info: Mapping[str, float] = field(default_factory=dict)
    """numbers for the log, of the last step"""
    score_requests: Sequence[ScoreRequest] = ()


class Environment(Protocol):
    """One episode.

    One with an attribute `blocking = True` waits for something outside of it (a server, a person, a subprocess): its
    `reset` and `step` run in a thread, beside those of the other episodes.
    """

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Begins; all its chance is a function of (task, seed)."""
        ...

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Takes the words of every agent that had an observation."""
        ...


@dataclass(frozen=True)
class Sample:
    """A score request with the completion: the input of a reward function."""

    request: ScoreRequest
    prompt_text: str
    """as the policy saw it"""
    completion: Completion


@dataclass(frozen=True)
class SampleReward:
    """A reward a reply, or one a sampled token; None where it could not be had, and `error` says why."""

    reward: float | tuple[float, ...] | None
    scores: Mapping[str, float] = field(default_factory=dict)
    """each scorer's own opinion, for the table of samples"""
    error: str = ""


class RewardFunction(Protocol):
    """The source of rewards for replies."""

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward per sample, in order. Makes no collective calls: the caller decides when too many have failed."""
        ...
