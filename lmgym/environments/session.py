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
    """What the agent sees after `reset` or after a reply."""

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


@dataclass
class _Voice:
    """The player of the agent: says what it was given."""

    text: str = ""

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        said = Completion(self.text, "eos")
        return [
            [Action(self.text, said, FittedPrompt([], to_transcript(one.observation.conversation)))] for one in requests
        ]


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
        self.named, self._voice, self._stack = named, _Voice(), ExitStack()
        players = {agent: GeneratorPlayer(actor) for agent, actor in named.players.items()}
        self._table = Table([players], self._voice, SEEDS, (InputError, RunStopped))
        self._stack.enter_context(self._table.threads())
        self.episode = RunningEpisode(0, 0, named.environment())
        self._known: Conversation | None = None
        self.agent = ""
        """the agent's name, once it is known"""

    def reset(self, task: Task, seed: int) -> Seen:
        """Begin an episode. Raises EpisodeFailed if its environment fails, and if it ends before the agent acts."""
        self.episode, self.agent, self._known = RunningEpisode(0, seed, self.episode.environment), "", None
        if self._table.begin([self.episode], [task], ()):
            raise EpisodeFailed(f"{self.named.name} has no room for an episode")
        seen = self._until_asked()
        if seen.ended:
            raise EpisodeFailed(f"{self.episode} ended before the agent acted")
        return seen

    def reply(self, text: str) -> Seen:
        """Say something. Raises EpisodeFailed if the environment fails."""
        assert self.agent in self.episode.observations, "an episode that goes on"
        self._voice.text = text
        before = len(self.episode.steps.get(self.agent, ()))
        self._step()
        seen = self._until_asked()
        rewards = [step.reward for step in self.episode.steps[self.agent][before:]]
        earned = [sum(reward) if isinstance(reward, tuple) else reward for reward in rewards]
        if None in earned:
            raise EpisodeFailed("; ".join(step.error for step in self.episode.steps[self.agent] if step.error))
        return replace(seen, reward=float(sum(earned)))  # type: ignore[arg-type]

    def close(self) -> None:
        """End the threads of the session, and the environment, if it can be closed."""
        self._stack.close()
        if close := getattr(self.episode.environment, "close", None):
            close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self) -> None:
        self._table.step([self.episode])
        add_rewards([self.episode], self._table.players, self.named.reward_function, grouped=False)

    def _until_asked(self) -> Seen:
        """Let the others play until the agent is asked, or the episode ends."""
        while not self.episode.ended:
            asked = [agent for agent in self.episode.observations if agent not in self.named.players]
            if len(asked) > 1 or (asked and self.agent not in ("", asked[0])):
                found = " and ".join(sorted({*asked, self.agent} - {""}))
                raise InputError(f"{self.named.name} asks {found}; needed here: one agent, others with players")
            if asked:
                self.agent = asked[0]
                break
            self._step()
        if self.episode.error:
            raise EpisodeFailed(self.episode.error)
        result = self.episode.result
        observation = None if self.episode.ended else self.episode.observations[self.agent]
        text = new_text(observation, self._known, self._voice.text) if observation else ""
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
