"""Episodes: the steps of trained agents, and an episode while it is played."""

import traceback
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmgym.environments.bounds import read_result, read_reward
from lmgym.environments.protocol import Action, Environment, Observation, ScoreRequest, StepResult
from lmgym.errors import one_line, shown
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
    borrowed: bool = False
    """of another rank, without a reward: forwards are collective, and no trained agent acted on this one"""


@dataclass(frozen=True)
class Episode:
    """The steps of one agent in one episode, in order; none if it did not act."""

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
    error: str = ""
    """why the environment failed; if it did before a trained agent acted, `agent` is empty and there are no steps"""
    unclaimed: Sequence[str] = ()
    """agents that the game rewarded and that did not act in it"""

    @property
    def acted(self) -> bool:
        """True if the agent acted in the game."""
        return any(not step.borrowed for step in self.steps)

    @property
    def is_absent(self) -> bool:
        """True if the agent did not act in a game that did not fail."""
        return not (self.acted or self.error)

    @property
    def failure(self) -> str:
        """Why it failed, or one of its rewards did; empty if none did."""
        return self.error or next((step.error for step in self.steps if step.error), "")

    @property
    def total_reward(self) -> float | None:
        """Sum of the steps' rewards; None if one failed, and of an agent that did not act."""
        rewards = [step.reward for step in self.steps]
        if not rewards or any(reward is None for reward in rewards):
            return None
        return float(sum(sum(r) if isinstance(r, tuple) else r for r in rewards if r is not None))


@dataclass(eq=False)
class RunningEpisode:
    """An episode while it is played, and after."""

    index: int
    seed: int
    environment: Environment
    member: int = 0
    """its number among the episodes of this seed"""
    result: StepResult = field(default_factory=StepResult)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """by trained agent"""
    said: list[Mapping[str, Action]] = field(default_factory=list)
    """by all agents, by step"""
    unclaimed: set[str] = field(default_factory=set)
    """agents with a reward that had not acted"""
    most_steps: int | None = None
    """it is truncated after so many steps of the environment"""
    error: str = ""
    """which episode failed, at which step, why, and where in the code of its environment"""
    reason: str = ""
    """why it failed, without the rest"""

    def __str__(self) -> str:
        return f"episode {self.index} (seed {self.seed}) of {type(self.environment).__name__}, step {self.step_number}"

    @property
    def step_number(self) -> int:
        """Number of steps that the environment has taken."""
        return len(self.said)

    @property
    def actions(self) -> list[dict[str, str]]:
        """The texts of all agents' actions, by step: the first k of them begin a fork at step k."""
        return [{agent: action.text for agent, action in said.items()} for said in self.said]

    def acted_only_in_beginning(self, agent: str) -> bool:
        """True of an agent that only replayed actions, so that there is no step to reward."""
        return agent not in self.steps and any(agent in said for said in self.said)

    @property
    def observations(self) -> Mapping[str, Observation]:
        """Observations of the agents that act next."""
        return self.result.observations

    @property
    def ended(self) -> bool:
        """True if terminated or truncated."""
        return self.result.terminated or self.result.truncated

    def begin(self, observations: Mapping[str, Observation]) -> None:
        """Take what the environment's `reset` gave; without any observation the episode has ended."""
        self.receive(StepResult(observations, terminated=not observations))

    def receive(self, result: StepResult) -> None:
        """Take the environment's result; one that is out of bounds (bounds.py) ends the episode as failed."""
        try:
            self.result = read_result(result)
        except (TypeError, ValueError) as error:
            self.end_as_failed(str(error))
            return
        if self.step_number == self.most_steps and not self.ended:
            self.result = replace(self.result, truncated=True)
        if result.restarted:
            self.steps.clear()

    def take(self, said: Mapping[str, Action]) -> None:
        """Keep what all agents say; actions of a policy in training are steps, without a reward so far."""
        for agent, action in said.items():
            if action.prompt is not None:
                assert action.completion is not None
                prompt, observed = action.prompt, self.observations[agent].prompt
                step = Step(
                    prompt.ids,
                    prompt.text,
                    action.completion,
                    dropped_turns=prompt.dropped_turns,
                    shortened=prompt.shortened,
                    observed=observed,
                    appended=prompt.appended,
                )
                self.steps.setdefault(agent, []).append(step)
        self.said.append(said)

    def fail(self, error: Exception) -> None:
        """End the episode after an exception of its environment: its agents' rewards are None, to be masked."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        self.end_as_failed(f"{type(error).__name__}: {error}", place)

    def end_as_failed(self, why: str, place: str = "") -> None:
        """End the episode: its agents' rewards are None, to be masked."""
        self.reason = one_line(why, 400)
        self.error = error = f"{self}: {self.reason}{place}"
        for agent in self.steps:
            self.add_reward(agent, None, error=error)
        self.result = StepResult(terminated=True)

    def latest_step(self, agent: str) -> Step:
        """The agent's latest step. Raises ValueError if it has none."""
        if agent not in self.steps:
            raise ValueError(
                f"a score request for {shown(agent)}, who has not acted; needed: one of {sorted(self.steps)}"
            )
        return self.steps[agent][-1]

    def last_said(self, agent: str) -> Said | None:
        """The agent's prompt and reply of its latest step; None without one, and if its prompt was truncated."""
        step = self.steps[agent][-1] if agent in self.steps else None
        if step is None or step.dropped_turns or step.shortened:
            return None
        return Said(step.prompt, step.prompt_text, step.completion)

    def add_environment_rewards(self, others: Container[str]) -> list[ScoreRequest]:
        """Add the environment's rewards to the agents' latest steps; the requests for scores of these steps.

        `others` are not trained. What is no reward ends the episode as failed. One for an agent that has not acted so
        far, as a judge in a game that ended before its turn, is kept in `unclaimed`.
        """
        ignored = [agent for agent in self.result.rewards if agent in others or self.acted_only_in_beginning(agent)]
        try:
            found = {a: read_reward(a, r) for a, r in self.result.rewards.items() if a not in ignored}
            wanted = [request for request in self.result.score_requests if request.agent not in others]
            wanted = [request for request in wanted if not self.acted_only_in_beginning(request.agent)]
            for request in wanted:
                self.latest_step(request.agent)
        except ValueError as error:
            self.end_as_failed(str(error))
            return []
        for agent, reward in found.items():
            if agent in self.steps:
                self.add_reward(agent, reward)
            elif reward:
                self.unclaimed.add(agent)
        return wanted

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
