"""A session: episodes of a named environment from the side of its one trained agent, a reply at a time.

Every other library's interface has one agent that acts and waits: TRL's environments, verifiers, OpenEnv, Gymnasium.
Other agents are played here, by the players of the environment, until the agent has to act again.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import final

from lmgym.environments.engine import SEEDS, Table, add_rewards
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.named import NamedEnvironment
from lmgym.environments.players import ActionRequest, GeneratorPlayer
from lmgym.environments.protocol import Action, EpisodeFailed, Observation, Task
from lmgym.errors import InputError, RunStopped
from lmgym.generation.prompt_fitting import FittedPrompt
from lmgym.generation.protocol import Completion
from lmgym.text import Conversation, Turn, to_transcript


@dataclass(frozen=True)
class Seen:
    """The agent's view after `reset` or after a reply."""

    observation: Observation | None
    """None: the episode has ended"""
    text: str = ""
    """what is new since its last reply: the turns behind it; the last one if the observation shows no past"""
    reward: float = 0.0
    """since its last reply"""
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, float] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """True if no reply is awaited any more."""
        return self.terminated or self.truncated


@final
class Driver:
    """An environment, an episode after the other, whose trained agents say what they are given. For one thread."""

    def __init__(self, named: NamedEnvironment) -> None:
        self.named = named
        self.texts: dict[str, str] = {}
        """by trained agent, what it says next"""
        self._stack = ExitStack()
        players = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
        self._table = Table([players], self, SEEDS, (InputError, RunStopped))
        self._stack.enter_context(self._table.threads())
        self.episode = RunningEpisode(0, 0, named.environment())
        if close := getattr(self.episode.environment, "close", None):
            self._stack.callback(close)

    @property
    def asked(self) -> list[str]:
        """The trained agents that act next."""
        return [agent for agent in self.episode.observations if agent not in self.named.players]

    def begin(self, task: Task, seed: int) -> None:
        """Begin an episode. Raises EpisodeFailed if its environment fails, or has no room for it."""
        self.episode = RunningEpisode(0, seed, self.episode.environment)
        if self._table.begin([self.episode], [task], ()):
            raise EpisodeFailed(f"{self.named.name} has no room for an episode")
        self._refuse_failure()

    def step(self) -> None:
        """Give the environment what all agents say that it has asked. Raises EpisodeFailed if it fails."""
        self._table.step([self.episode])
        add_rewards([self.episode], self._table.players, self.named.reward_function, grouped=False)
        self._refuse_failure()

    def earned(self, agent: str, first: int = 0) -> float:
        """The sum of an agent's rewards from a step of its own on. Raises EpisodeFailed if one of them has failed."""
        steps = self.episode.steps.get(agent, [])[first:]
        rewards = [sum(step.reward) if isinstance(step.reward, tuple) else step.reward for step in steps]
        if None in rewards:
            raise EpisodeFailed("; ".join(step.error for step in steps if step.error))
        return float(sum(rewards))  # type: ignore[arg-type]

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """Say what `texts` has for each agent, whose player this is."""
        return [[self._said(request)] for request in requests]

    def close(self) -> None:
        """End the threads, and the environment, if it can be closed."""
        self._stack.close()

    def _said(self, request: ActionRequest) -> Action:
        text, prompt = self.texts[request.agent], to_transcript(request.observation.conversation)
        return Action(text, Completion(text, "eos"), FittedPrompt([], prompt))

    def _refuse_failure(self) -> None:
        if self.episode.error:
            raise EpisodeFailed(self.episode.error)


@final
class Session:
    """Episodes one after the other. Not for several threads; `close` it, or use it in a `with`.

    Raises InputError for environments that train several agents.
    """

    def __init__(self, named: NamedEnvironment) -> None:
        if named.trained_agents > 1:
            raise InputError(
                f"{named.name} trains {named.trained_agents} agents at once; needed here: one, others with players"
            )
        self.named, self._driver = named, Driver(named)
        self._known: Conversation | None = None
        self._reply = ""
        """to what is known"""
        self.agent = ""
        """the agent's name, once it is known"""

    @property
    def episode(self) -> RunningEpisode:
        """The one that is played."""
        return self._driver.episode

    def reset(self, task: Task, seed: int) -> Seen:
        """Begin an episode. Raises EpisodeFailed if its environment fails, and if it ends before the agent acts."""
        self.agent, self._known = "", None
        self._driver.begin(task, seed)
        seen = self._until_asked()
        if seen.ended:
            raise EpisodeFailed(f"{self.episode} ended before the agent acted")
        return seen

    def reply(self, text: str) -> Seen:
        """Say something. Raises EpisodeFailed if the environment fails."""
        assert self.agent in self.episode.observations, "an episode that goes on"
        self._reply = self._driver.texts[self.agent] = text
        before = len(self.episode.steps.get(self.agent, ()))
        self._driver.step()
        seen = self._until_asked()
        return replace(seen, reward=self._driver.earned(self.agent, before))

    def close(self) -> None:
        """End the threads of the session, and the environment, if it can be closed."""
        self._driver.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until_asked(self) -> Seen:
        """Let the others play until the agent is asked, or the episode ends."""
        while not self.episode.ended:
            asked = self._driver.asked
            if len(asked) > 1 or (asked and self.agent not in ("", asked[0])):
                found = " and ".join(sorted({*asked, self.agent} - {""}))
                raise InputError(f"{self.named.name} asks {found}; needed here: one agent, others with players")
            if asked:
                self.agent = asked[0]
                break
            self._driver.step()
        result = self.episode.result
        observation = None if self.episode.ended else self.episode.observations[self.agent]
        text = new_text(observation, self._known, self._reply) if observation else ""
        self._known = observation.conversation if observation else None
        return Seen(observation, text, 0.0, result.terminated, result.truncated, result.info)


def new_text(observation: Observation, known: Conversation | None, reply: str) -> str:
    """The text of the turns behind `known` and the reply to it; of the last turn, if the observation begins otherwise.

    `known` None: of all turns.
    """
    turns = observation.conversation.turns
    before = (*known.turns, Turn("bot", reply)) if known else ()
    said = [(turn.speaker, turn.text.strip()) for turn in before]
    if [(turn.speaker, turn.text.strip()) for turn in turns[: len(before)]] != said:
        before = turns[:-1]
    return "\n\n".join(turn.text for turn in turns[len(before) :])
