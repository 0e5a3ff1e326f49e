"""Players, which act in environments: their interface, and those of a generator and of a script.

Design decisions:
- A player is asked once for all that it has to say in a step, over all episodes and seats, so that a model runs in full
  batches. Seats of one player are one request.
- The seed of an action is given, so that a reply depends neither on the rest of the request nor on other players.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, final
from weakref import WeakKeyDictionary

import numpy as np

from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.protocol import Action, Environment, Observation
from lmgym.generation.protocol import Completion, Generator, ReplyScript, Sampling
from lmgym.text import Conversation


class Chooser(Protocol):
    """A policy over the actions that observations list, such as lmgym/generation/actions.py, which imports torch."""

    def pick(
        self, prompts: Sequence[Conversation], actions: Sequence[Sequence[str]], sampling: Sampling
    ) -> list[list[Completion]]:
        """One of the listed actions for each prompt."""
        ...


Actor: TypeAlias = Generator | Chooser
"""what a `GeneratorPlayer` acts by"""


class ActionRequest(NamedTuple):
    """A request for what one agent says next."""

    environment: Environment
    """as it stands: scripts, and players that look ahead, read more of it than the observation shows"""
    agent: str
    observation: Observation
    seed: int
    """of this action alone"""
    players: Mapping[str, "Player"] = {}
    """who plays the episode's agents"""
    episode: RunningEpisode | None = None
    """None outside of `play`"""


class Player(Protocol):
    """A model, script, person, recording, best-of-n debater, judge, or the policy in training."""

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n independent actions for each request."""
        ...


@dataclass(frozen=True)
class GeneratorPlayer:
    """Any generator as a player: its replies to the observations, or its choices among the actions that they list.

    What a model thinks before it answers is no part of its action.
    """

    generator: Actor
    sampling: Sampling = field(default_factory=Sampling)

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n replies to each observation: one request to the generator."""
        sampling = replace(self.sampling, seed=tuple(request.seed for request in requests))
        seen = [request.observation for request in requests]
        prompts = [one.conversation for one in seen]
        if hasattr(self.generator, "pick"):
            assert n == 1, "a policy over actions chooses once"
            found = self.generator.pick(prompts, [one.actions for one in seen], sampling)
        else:
            found = self.generator.reply(prompts, n, sampling)
        return [[Action(completion.answer, completion) for completion in own] for own in found]


ActionScript = Callable[[Any, Observation, np.random.Generator], str]
"""an action by (environment, observation, random generator)"""


def by_conversation(script: ReplyScript) -> ActionScript:
    """A script that sees no more than its observation, as those of a `ScriptedGenerator`."""
    return lambda environment, seen, rng: script(seen.conversation, rng)


@final
class ScriptPlayer:
    """A script as a player, with a random generator for each episode.

    `stream` of the episode's seed is the seed of its random generator, from which all of its actions are drawn.
    """

    def __init__(self, script: ActionScript, stream: Callable[[int], Sequence[int]]) -> None:
        self.script, self.stream = script, stream
        self._streams: WeakKeyDictionary[RunningEpisode, np.random.Generator] = WeakKeyDictionary()

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n actions for each request."""
        return [[self._say(request) for _ in range(n)] for request in requests]

    def _say(self, request: ActionRequest) -> Action:
        assert request.episode is not None, "a script's random generator is the episode's"
        if request.episode not in self._streams:
            self._streams[request.episode] = np.random.default_rng(self.stream(request.episode.seed))
        return Action(self.script(request.environment, request.observation, self._streams[request.episode]))


K = TypeVar("K", bound=Hashable)


def ask(requests: Mapping[K, tuple[Player, ActionRequest]], n: int = 1) -> dict[K, list[Action]]:
    """n actions for each request, by its key: one call of each player."""
    asked: dict[int, list[K]] = {}
    for key, (player, _) in requests.items():
        asked.setdefault(id(player), []).append(key)
    found: dict[K, list[Action]] = {}
    for keys in asked.values():
        player = requests[keys[0]][0]
        found |= zip(keys, player.act([requests[key][1] for key in keys], n), strict=True)
    return found
