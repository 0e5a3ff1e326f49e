"""Games played as the later versions of Playpen do it: instances, a runner, and callbacks on each step.

    with GameBenchmark.load_from_spec(game_spec) as game_benchmark:
        instances = GameInstances.from_game_spec(game_benchmark.game_spec)
        branching.run(game_benchmark, instances, [teacher, learner], callbacks=callbacks, branching_factor=2)

At a branching point the callbacks are copied deeply, and each copy sees one branch from the game's beginning to its
end. Of games that are played together, callbacks see one after the other, as each ends.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.instance_lists import normal_id
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask, close_games, tasks_of
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.trainers.buffers import BranchingEpisodeBuffer, EpisodeBuffer, GameSnapshot, GameStep
from lmgym.apps.playpen.trainers.stepping import SCORE, GameEnv, ask
from lmgym.console import say
from lmgym.environments.protocol import EpisodeFailed
from lmgym.errors import InputError, listed

Row = Mapping[str, Any]
Condition = Callable[..., bool]
"""whether to branch, by the keywords `player` and `env`"""
_points = count()
"""numbers of branching points, of which no two in a process are equal"""


class GameBenchmarkCallback:
    """Hooks of a runner; each does nothing unless it is overridden. `game_master` is a GameEnv."""

    def on_benchmark_start(self, game_benchmark: "GameBenchmark") -> None:
        """Called before the first game."""

    def on_game_start(self, game_master: GameEnv, game_instance: Row) -> None:
        """Called before the first reply of a game."""

    def on_branching_point(self, game_master: GameEnv, game_instance: Row, snapshot: GameSnapshot) -> None:
        """Called for each new branch."""

    def on_game_step(self, game_master: GameEnv, game_instance: Row, game_step: GameStep) -> None:
        """Called after each reply."""

    def on_game_end(
        self,
        game_master: GameEnv,
        game_instance: Row,
        exception: Exception | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> None:
        """Called after a game: the reward by player, 1, 0, or -1 if it was aborted; or why the game failed."""

    def on_benchmark_end(self, game_benchmark: "GameBenchmark") -> None:
        """Called after the last game."""


@dataclass
class GameBenchmarkCallbackList:
    """Several callbacks as one."""

    callbacks: list[Any] = field(default_factory=list)

    def append(self, callback: Any) -> None:
        """Add a callback."""
        self.callbacks.append(callback)

    def call(self, hook: str, *given: Any, **more: Any) -> None:
        """Call a hook of each that has it; of `more` those that it takes."""
        for callback in self.callbacks:
            if method := getattr(callback, hook, None):
                taken = inspect.signature(method).parameters
                every = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values())
                method(*given, **{name: value for name, value in more.items() if every or name in taken})


class EpisodeBufferCallback(GameBenchmarkCallback):
    """Keeps all steps in a buffer."""

    def __init__(self, episode_buffer: EpisodeBuffer) -> None:
        self.episode_buffer = episode_buffer

    def on_game_start(self, game_master: GameEnv, game_instance: Row) -> None:
        """Begin an episode."""
        self.episode_buffer.next_episode()

    def on_game_step(self, game_master: GameEnv, game_instance: Row, game_step: GameStep) -> None:
        """Keep the step."""
        self.episode_buffer.add_step(game_step.context, game_step.response, game_step.done, dict(game_step.info))


def average_rewards(rewards: Mapping[str, float]) -> float:
    """The mean over the players."""
    return sum(rewards.values()) / len(rewards)


class BranchingEpisodeBufferCallback(GameBenchmarkCallback):
    """Keeps all branches in a buffer, which copies of this share; each has the steps of its own branch."""

    def __init__(
        self,
        episode_buffer: BranchingEpisodeBuffer,
        score_func: Callable[[Mapping[str, float]], float] = average_rewards,
    ) -> None:
        self.episode_buffer, self.score_func = episode_buffer, score_func
        self._trajectory: list[GameStep] = []
        self._trajectory_markers: list[tuple[GameSnapshot, int]] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "BranchingEpisodeBufferCallback":
        other = object.__new__(type(self))
        own = {"_trajectory": [*self._trajectory], "_trajectory_markers": [*self._trajectory_markers]}
        other.__dict__.update(self.__dict__ | own)
        return other

    def on_branching_point(self, game_master: GameEnv, game_instance: Row, snapshot: GameSnapshot) -> None:
        """Keep where the branch began."""
        self._trajectory_markers.append((snapshot, len(self._trajectory)))

    def on_game_step(self, game_master: GameEnv, game_instance: Row, game_step: GameStep) -> None:
        """Keep the step."""
        self._trajectory.append(game_step)

    def on_game_end(
        self,
        game_master: GameEnv,
        game_instance: Row,
        exception: Exception | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> None:
        """Give the branch to the buffer; one that failed is left out."""
        trajectory, markers = self._trajectory, self._trajectory_markers
        self._trajectory, self._trajectory_markers = [], []
        if exception is None and rewards:
            score = self.score_func(rewards)
            self.episode_buffer.add_trajectory(trajectory, score)
            for snapshot, turn in markers:
                self.episode_buffer.add_branching_point(snapshot, turn, trajectory, score)


@dataclass(frozen=True)
class GameInstances:
    """Instances of games to train on, as rows of game_name, experiment and game_instance."""

    tasks: Sequence[tuple[str, GameTask]]

    @staticmethod
    def from_game_spec(
        game_spec: Spec | Sequence[Spec],
        instances_filename: str | None = None,
        sub_selector: Callable[[str, str], Sequence[Any]] | None = None,
    ) -> "GameInstances":
        """All of one game or of several; with a selector, those whose game_id it gives for (game, experiment)."""
        specs = [spec.with_instances(instances_filename) for spec in _listed(game_spec)]
        games = [open_game(spec, for_training=True) for spec in specs]
        found = GameInstances([(game.spec.name, task) for game in games for task in tasks_of(game)])
        if sub_selector is None:
            return found
        chosen = sub_selector

        def is_selected(row: Row) -> bool:
            ids = chosen(row["game_name"], row["experiment"]["name"])
            return normal_id(row["game_instance"].get("game_id")) in map(normal_id, ids)

        return found.filter(is_selected)

    def filter(self, condition: Callable[[Row], bool]) -> "GameInstances":
        """Those whose row fits. Raises InputError for none."""
        rows = zip(self.tasks, self, strict=True)
        kept = [one for one, row in rows if condition(row)]
        if not kept:
            games = listed(dict.fromkeys(f"{name} {task.experiment.get('name')}" for name, task in self.tasks), 5)
            raise InputError(
                f"the filter leaves none of {len(self.tasks)} instances ({games}); needed: rows of these games, "
                "such as --games CHECKOUT for the instances of playpen-data, or no filter"
            )
        return GameInstances(kept)

    def reset(self, verbose: bool = True) -> "GameInstances":
        """Itself: each run plays all of them."""
        return self

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Row]:
        for name, task in self.tasks:
            yield {"game_name": name, "experiment": task.experiment, "game_instance": task.instance}


def to_instances_filter(dataset: Iterable[Row]) -> Callable[[Row], bool]:
    """A filter of GameInstances for the rows of game, experiment and task_id of a data set."""
    wanted = {(row["game"], row["experiment"], normal_id(row["task_id"])) for row in dataset}
    return lambda row: (
        (row["game_name"], row["experiment"]["name"], normal_id(row["game_instance"].get("game_id"))) in wanted
    )


def to_sub_selector(dataset: Iterable[Row]) -> Callable[[str, str], list[Any]]:
    """The task_ids of a data set by (game, experiment)."""
    ids: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for row in dataset:
        ids[row["game"], row["experiment"]].append(row["task_id"])
    return lambda game, experiment: ids.get((game, experiment), [])


@dataclass(frozen=True)
class GameBenchmark:
    """Games that are opened to be played; closed at the end of a `with`."""

    game_spec: Any
    """of the game, or a list of several"""
    games: Mapping[str, Game]

    @staticmethod
    def load_from_spec(game_spec: Spec | Sequence[Spec]) -> "GameBenchmark":
        """One game, or several."""
        games = [open_game(spec, for_training=True) for spec in _listed(game_spec)]
        return GameBenchmark(game_spec, {game.spec.name: game for game in games})

    @property
    def game_name(self) -> str:
        """The names."""
        return ", ".join(self.games)

    def __enter__(self) -> "GameBenchmark":
        return self

    def __exit__(self, *_: object) -> None:
        close_games(list(self.games.values()))


def play_instances(
    game_benchmark: GameBenchmark,
    game_instances: GameInstances,
    player_models: Sequence[Model | None],
    callbacks: Any = None,
    at_once: int = 1,
    branching_factor: int = 1,
    branching_condition: Condition | None = None,
) -> None:
    """Plays each instance once, so many at a time; a model that is None has no seat.

    With a factor above 1, each turn that the condition holds for branches so often.
    """
    models = [model for model in player_models if model is not None]
    given = callbacks.callbacks if hasattr(callbacks, "callbacks") else list(callbacks or [])
    hooks = GameBenchmarkCallbackList(list(given))
    hooks.call("on_benchmark_start", game_benchmark)
    branched = branching_factor == 1
    for start in range(0, len(game_instances), at_once):
        some = game_instances.tasks[start : start + at_once]
        runs = [_Run(GameEnv(game_benchmark.games[name], models, [task]), hooks) for name, task in some]
        while runs:
            grown = [one for run in runs for one in run.grow(branching_factor, branching_condition)]
            branched |= len(grown) > len(runs)
            replies = ask([run.env.current_player for run in grown])
            for run, reply in zip(grown, replies, strict=True):
                run.step(reply)
            runs = [run for run in grown if not run.env.is_done()]
    hooks.call("on_benchmark_end", game_benchmark)
    if not branched:
        say("warning: no turn branched, since branching_condition held for none", error=True)


@dataclass
class _Run:
    """A game, or a branch of one, with its callbacks; what they are to see is kept until the game branches or ends."""

    env: GameEnv
    hooks: GameBenchmarkCallbackList
    kept: list[GameStep] = field(default_factory=list)
    has_begun: bool = False

    def grow(self, factor: int, condition: Condition | None) -> "list[_Run]":
        """The branches at this turn, or itself."""
        env = self.env
        if factor == 1 or (condition and not condition(player=env.current_player, env=env)):
            return [self]
        self.tell()
        runs = [_Run(one, deepcopy(self.hooks), has_begun=True) for one in env.branch_out(factor)]
        origin = next(_points)
        for number, run in enumerate(runs):
            run.call("on_branching_point", GameSnapshot(origin, number))
        return runs

    def step(self, reply: str) -> None:
        """The reply of the player whose turn it is."""
        context = self.env.current_player.context
        done, info = self.env.step(reply)
        self.kept.append(GameStep(context, reply, done, info))
        if done:
            self.tell()
            score, failure = info[SCORE], self.env.records().failure
            players = [f"Player {i + 1}" for i in range(len(self.env.game.seats))]
            rewards = None if score is None else dict.fromkeys(players, score)
            self.call("on_game_end", exception=EpisodeFailed(failure) if failure else None, rewards=rewards)

    def tell(self) -> None:
        """Give the steps that were kept to the callbacks."""
        if not self.has_begun:
            self.call("on_game_start")
            self.has_begun = True
        for step in self.kept:
            self.call("on_game_step", step)
        self.kept = []

    def call(self, hook: str, *given: Any, **more: Any) -> None:
        """Call a hook with the game."""
        self.hooks.call(hook, self.env, self.env.task.instance, *given, **more)


def _listed(game_spec: Spec | Sequence[Spec]) -> list[Spec]:
    return [game_spec] if isinstance(game_spec, Spec) else list(game_spec)
