"""A game step by step, as the first version of Playpen has it, for trainers that collect their rollouts themselves.

    with make_env(game_spec, [learner, teacher]) as env:
        player, context = env.observe()
        done, info = env.step(player(context))

A fork is a replay: a new environment at the same instance, given the replies so far. Whoever only wants episodes plays
many at once with `BasePlayPen.collect_rollouts`.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, close_games, tasks_of
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.trainers.learning_games import paper_reward
from lmgym.environments.engine import hash_of
from lmgym.environments.protocol import EpisodeFailed, Observation
from lmgym.errors import InputError, TooLong
from lmgym.text import messages

Context = dict[str, str]
"""the latest message that a player was given: role and content"""
PLAYER, SCORE, FAILURE = "player", "episode_score", "failure"
"""what a step's info has: who replied, and after the last one the reward of the episode, or None and why it failed"""
_environments = count()
"""numbers of environments: episodes of two of them have different seeds, and the same program has them again"""


@dataclass(frozen=True, eq=False)
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
        [reply] = ask([self])
        return reply

    def __deepcopy__(self, memo: dict[int, Any]) -> "SeatedPlayer":
        return self  # callbacks are copied with their steps, and models are not

    @property
    def context(self) -> Context:
        """The latest message to it."""
        return dict(messages(self.seen.conversation)[-1])


class Unanswered(str):
    """No reply, since the prompt leaves no room for one: the game that gets it fails with this reason."""

    reason = ""

    def __new__(cls, reason: str) -> "Unanswered":
        """An empty reply."""
        found = super().__new__(cls, "")
        found.reason = reason
        return found


def ask(players: Sequence[SeatedPlayer]) -> list[str]:
    """The replies of players, those of one model by one request."""
    replies = [""] * len(players)
    shares: dict[int, list[int]] = {}
    for number, player in enumerate(players):
        if player.model.is_programmed:
            script = player.game.script(player.game_role)
            assert script is not None, "a game that plays its programmed seats itself does not ask them"
            replies[number] = script(player.seen.conversation, np.random.default_rng(player.seed))
        else:
            shares.setdefault(id(player.model), []).append(number)
    for numbers in shares.values():
        some = [players[number] for number in numbers]
        model = some[0].model
        sampling = replace(model.sampling, seed=tuple(player.seed for player in some))
        try:
            found = model.generator.reply([player.seen.conversation for player in some], 1, sampling)
        except TooLong as error:
            own = [Unanswered(str(error))] if len(some) == 1 else [reply for one in some for reply in ask([one])]
        else:
            own = [completion.text for [completion] in found]
        for number, reply in zip(numbers, own, strict=True):
            replies[number] = reply
    return replies


class GameEnv:
    """Episodes of one game, one after the other: its instances in turn, from the first one on again after the last.

    One model takes all seats, or each seat has one. After `task_iterations` passes `reset` raises StopIteration.
    """

    def __init__(
        self, game: Game, models: Sequence[Model], tasks: Sequence[GameTask], task_iterations: int | None = None
    ) -> None:
        if len(models) not in (1, len(game.seats)) or not tasks:
            raise InputError(
                f"{game.spec.name} has {len(game.seats)} players and {len(tasks)} instances here, and {len(models)} "
                "models are given; needed: an instance, and one model for all seats or one for each"
            )
        self.game, self.tasks, self.episode, self.task_iterations = game, tasks, -1, task_iterations
        self.number = next(_environments)
        self.branch = ""
        """the numbers of the forks that led here"""
        self.models = dict(zip(game.seats, models if len(models) > 1 else [models[0]] * len(game.seats), strict=True))
        self.reset()

    @property
    def spec(self) -> Spec:
        """The registry's entry of the game."""
        return self.game.spec

    game_spec = spec

    @property
    def task(self) -> GameTask:
        """The instance that is played."""
        return self.tasks[self.episode % len(self.tasks)]

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The instance's experiment."""
        return self.task.experiment

    @property
    def master(self) -> "GameEnv":
        """Itself, which knows what a game master of clemcore is asked for."""
        return self

    game_master = master

    @property
    def current_player(self) -> SeatedPlayer:
        """The player whose turn it is."""
        return self._seated(self._seat())

    @property
    def current_round(self) -> int:
        """Rounds before this one; in each, every seat replies once."""
        return self.steps // len(self.models)

    def reset(self) -> None:
        """Begin the next instance that asks a player. Raises InputError if none does."""
        for _ in self.tasks:
            if self.task_iterations and self.episode + 1 >= self.task_iterations * len(self.tasks):
                raise StopIteration
            self.episode += 1
            self.branch = ""
            self._begin()
            if self.pending:
                return
        raise InputError(
            f"{self.spec.name} asks no player in any of {len(self.tasks)} instances; needed: a model in one "
            "seat, since the games of a checkout play the seats of mock themselves"
        )

    def _begin(self) -> None:
        self.steps, self.replies, self.said = 0, dict[str, str](), list[str]()
        names = {seat: model.name for seat, model in self.models.items()}
        given = {"experiment": self.task.experiment, "instance": self.task.instance, "players": names}
        self.environment = self.game.environment()
        self.pending = dict(self.environment.reset(given, hash_of("steps", self.number, self.episode)))
        self.failure = ""

    def fork(self, number: int) -> "GameEnv":
        """A new environment at this point of the episode; its players' seeds differ by its number."""
        other = object.__new__(GameEnv)
        other.__dict__.update(self.__dict__)
        other.branch = f"{self.branch}/{number}"
        other._begin()
        for reply in self.said:
            other.step(reply)
        return other

    def branch_out(self, number: int) -> "list[GameEnv]":
        """So many branches at this point: this environment, and forks of it."""
        forks = [self.fork(place) for place in range(1, number)]
        self.branch += "/0"
        return [self, *forks]

    def is_done(self) -> bool:
        """True once the episode has ended; `reset` begins the next one."""
        return not self.pending

    def observe(self) -> tuple[SeatedPlayer, Context]:
        """The player whose turn it is, and the latest message to it."""
        player = self.current_player
        return player, player.context

    def step(self, response: str) -> tuple[bool, dict[str, Any]]:
        """(True if the episode has ended, what the game tells) after the reply of the player whose turn it is."""
        player = self.current_player
        self.replies[player.game_role] = response
        self.said.append(response)
        self.steps += 1
        info: dict[str, Any] = {PLAYER: player}
        if isinstance(response, Unanswered):
            return self._fail(response.reason, info)
        if len(self.replies) < len(self.pending):
            return False, info
        replies, self.replies = self.replies, {}
        try:
            result = self.environment.step(replies)
        except EpisodeFailed as error:
            return self._fail(str(error), info)
        info |= result.info
        self.pending = {} if result.terminated or result.truncated else dict(result.observations)
        if self.is_done():
            records = self.records()
            info |= {SCORE: None, FAILURE: records.failure} if records.failure else {SCORE: paper_reward(records)}
        return self.is_done(), info

    def _fail(self, reason: str, info: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
        self.failure, self.pending = reason, {}
        return True, {**info, SCORE: None, FAILURE: reason}

    def records(self) -> Records:
        """The records and scores of the episode, once it has ended."""
        return Records(failure=self.failure) if self.failure else self.environment.records()

    def branches(self) -> "list[GameEnv]":
        """The environments of this episode: this one."""
        return [self]

    def _seat(self) -> str:
        if self.is_done():
            raise InputError(f"the episode of {self.spec.name} has ended; needed: reset() before the next step")
        return next(seat for seat in self.pending if seat not in self.replies)

    def _seated(self, seat: str) -> SeatedPlayer:
        number = list(self.game.seats).index(seat) + 1
        seed = hash_of("steps", self.number, self.episode, self.branch, self.steps, seat)
        return SeatedPlayer(f"Player {number}", seat, self.models[seat], self.game, self.pending[seat], seed)


@contextmanager
def make_env(
    game_spec: Spec,
    players: Sequence[Model | None],
    shuffle_instances: bool = False,
    task_iterations: int | None = None,
    instances_filename: str | None = None,
) -> Iterator[GameEnv]:
    """The episodes of a game's instances to train on; without a teacher (None) the learner takes all seats.

    Raises InputError for a game that cannot be opened.
    """
    with opened_tasks(game_spec, shuffle_instances, instances_filename) as (game, tasks):
        yield GameEnv(game, [player for player in players if player is not None], tasks, task_iterations)


@contextmanager
def opened_tasks(spec: Spec, shuffled: bool, instances: str | None) -> Iterator[tuple[Game, list[GameTask]]]:
    """A game and its instances to train on, from another file if that is named. Raises InputError as `make_env`."""
    game = open_game(spec.with_instances(instances), for_training=True)
    try:
        tasks = tasks_of(game)
        yield game, random.sample(tasks, len(tasks)) if shuffled else tasks
    finally:
        close_games([game])
