"""A game step by step, as the first version of Playpen has it, for trainers that collect their rollouts themselves.

    with make_env(game_spec, [learner, teacher]) as env:
        player, context = env.observe()
        done, info = env.step(player(context))

`StepRolloutBuffer` keeps the steps by episode. Whoever only wants episodes plays many at once with
`BasePlayPen.collect_rollouts`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, close_games, tasks_of
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments.engine import hash_of
from lmgym.environments.protocol import Observation
from lmgym.errors import InputError
from lmgym.text import messages

Context = dict[str, str]
"""the latest message that a player was given: role and content"""


@dataclass(frozen=True)
class SeatedPlayer:
    """A player in its seat, with what it has seen: called with the context, it replies."""

    name: str
    game_role: str
    model: Model
    game: Game
    seen: Observation
    seed: int

    def __call__(self, context: Context) -> str:
        """The reply to all that the player has seen, of which the context is the latest."""
        conversation = self.seen.conversation
        if self.model.is_programmed:
            script = self.game.script(self.game_role)
            assert script is not None, "a game that plays its programmed seats itself does not ask them"
            return script(conversation, np.random.default_rng(self.seed))
        [[completion]] = self.model.generator.reply([conversation], 1, replace(self.model.sampling, seed=(self.seed,)))
        return completion.text


class GameEnv:
    """Episodes of one game, one after the other: its instances in turn, from the first one on again after the last.

    One model takes all seats, or each seat has one.
    """

    def __init__(self, game: Game, models: Sequence[Model], tasks: Sequence[GameTask]) -> None:
        if len(models) not in (1, len(game.seats)) or not tasks:
            raise InputError(
                f"{game.spec.name} has {len(game.seats)} players and {len(tasks)} instances here, and {len(models)} "
                "models are given; needed: an instance, and one model for all seats or one for each"
            )
        self.game, self.tasks, self.episode = game, tasks, -1
        self.models = dict(zip(game.seats, models if len(models) > 1 else [models[0]] * len(game.seats), strict=True))
        self.reset()

    @property
    def spec(self) -> Spec:
        """The registry's entry of the game."""
        return self.game.spec

    @property
    def task(self) -> GameTask:
        """The instance that is played."""
        return self.tasks[self.episode % len(self.tasks)]

    def reset(self) -> None:
        """Begin the next instance that asks a player. Raises InputError if none does."""
        for _ in self.tasks:
            self._begin()
            if self.pending:
                return
        raise InputError(
            f"{self.spec.name} asks no player in any of {len(self.tasks)} instances; needed: a model in one "
            "seat, since the games of a checkout play the seats of mock themselves"
        )

    def _begin(self) -> None:
        self.episode += 1
        self.steps, self.replies = 0, dict[str, str]()
        names = {seat: model.name for seat, model in self.models.items()}
        given = {"experiment": self.task.experiment, "instance": self.task.instance, "players": names}
        self.environment = self.game.environment()
        self.pending = dict(self.environment.reset(given, hash_of("steps", self.episode)))

    def is_done(self) -> bool:
        """True once the episode has ended; `reset` begins the next one."""
        return not self.pending

    def observe(self) -> tuple[SeatedPlayer, Context]:
        """The player whose turn it is, and the latest message to it."""
        seat = self._seat()
        seen = self.pending[seat]
        number = list(self.game.seats).index(seat) + 1
        seed = hash_of("steps", self.episode, self.steps, seat)
        player = SeatedPlayer(f"Player {number}", seat, self.models[seat], self.game, seen, seed)
        return player, dict(messages(seen.conversation)[-1])

    def step(self, response: str) -> tuple[bool, Mapping[str, Any]]:
        """(True if the episode has ended, what the game tells) after the reply of the player whose turn it is."""
        self.replies[self._seat()] = response
        self.steps += 1
        if len(self.replies) < len(self.pending):
            return False, {}
        result = self.environment.step(self.replies)
        self.replies = {}
        self.pending = {} if result.terminated or result.truncated else dict(result.observations)
        return self.is_done(), result.info

    def records(self) -> Records:
        """The records and scores of the episode, once it has ended."""
        return self.environment.records()

    def _seat(self) -> str:
        if self.is_done():
            raise InputError(f"the episode of {self.spec.name} has ended; needed: reset() before the next step")
        return next(seat for seat in self.pending if seat not in self.replies)


@contextmanager
def make_env(game_spec: Spec, players: Sequence[Model | None], shuffle_instances: bool = False) -> Iterator[GameEnv]:
    """The episodes of a game's instances to train on; without a teacher (None) the learner takes all seats.

    Raises InputError for a game that cannot be opened.
    """
    game = open_game(game_spec, for_training=True)
    try:
        tasks = tasks_of(game)
        seated = [player for player in players if player is not None]
        yield GameEnv(game, seated, random.sample(tasks, len(tasks)) if shuffle_instances else tasks)
    finally:
        close_games([game])


class StepRolloutBuffer:
    """The steps of `_collect_rollouts` by episode, each with context, response, done and info."""

    def __init__(self, game_env: GameEnv) -> None:
        self.game_env = game_env
        self.trajectories: list[list[dict[str, Any]]] = [[]]

    def on_step(self, context: Context, response: str, done: bool, info: Mapping[str, Any]) -> None:
        """Keep a step."""
        self.trajectories[-1].append({"context": context, "response": response, "done": done, "info": info})

    def on_done(self) -> None:
        """Begin the next episode's steps."""
        self.trajectories.append([])

    def reset(self) -> None:
        """Forget all steps."""
        self.trajectories = [[]]
