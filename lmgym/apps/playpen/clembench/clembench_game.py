"""A game of a clembench checkout as environments, by way of the bridge: one subprocess, one of its threads an episode.

The reward comes from the game's own scorer over the recorded interactions. An episode that fails, or whose scorer does,
has no reward: it is masked with the reason. A fork is a replay: `run_episodes(beginnings=...)`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.games.dialogue.scoring import MAIN_SCORE
from lmgym.apps.playpen.clembench.bridge import Asked, Bridge, Over
from lmgym.apps.playpen.playing import Game
from lmgym.apps.playpen.registries.games import is_own, refuse_unnamed
from lmgym.apps.playpen.registries.models import MOCKS
from lmgym.apps.playpen.registries.own_games import OWN_GAMES, OwnGame
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments.protocol import EpisodeFailed, Observation, ScoreRequest, StepResult, Task
from lmgym.errors import InputError, one_line, shown_path
from lmgym.generation.protocol import ReplyScript
from lmgym.messages import from_messages
from lmgym.runs.files import read_json

REWARD, FAILED = "episode_reward", "episode_failure"
"""columns of a score request: the reward of the episode, or why it has none"""


def open_game(spec: Spec, for_training: bool = False) -> Game:
    """The game of a registry's entry, with its instances to evaluate on; one of ours has others to train on.

    Raises InputError for one whose code the user has not named.
    """
    refuse_unnamed(spec)
    return OwnGame(spec, OWN_GAMES[spec.name], for_training) if is_own(spec) else ClembenchGame(spec)


def seat_name(number: int) -> str:
    """The agent of a seat, counted from 1, by clembench's name."""
    return f"Player {number}"


@final
class ClembenchGame:
    """A game of a checkout; its subprocess starts when it is first needed."""

    def __init__(self, spec: Spec, python: Path | None = None) -> None:
        self.spec, self.python = spec, python
        self.seats: Sequence[str] = [seat_name(i + 1) for i in range(int(spec.get("players")))]

    @cached_property
    def bridge(self) -> Bridge:
        """The subprocess. Raises InputError if the game does not load."""
        return Bridge(self.spec, self.python)

    def experiments(self) -> Sequence[Mapping[str, Any]]:
        """The checkout's instances. Raises InputError if there are none."""
        return self._instances

    @cached_property
    def _instances(self) -> Sequence[Mapping[str, Any]]:
        name = str(self.spec.get("instances") or "instances").removesuffix(".json")
        path = Path(str(self.spec.get("game_path"))) / "in" / f"{name}.json"
        try:
            experiments = read_json(path)["experiments"]
            found = [one for one in experiments if one["name"] and isinstance(one["game_instances"], list)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.spec.name} has no instances: {shown_path(path)} cannot be read ({one_line(str(error), 60)}); "
                "needed: a whole checkout"
            ) from error
        if not any(experiment["game_instances"] for experiment in found):
            raise InputError(f"{self.spec.name} has no instances; needed: some in {shown_path(path)}")
        return found

    def environment(self) -> "ClembenchEpisode":
        """A new environment."""
        return ClembenchEpisode(self.bridge, self.seats)

    def script(self, seat: str) -> ReplyScript | None:
        """None: the game plays its programmed seats itself."""
        return None

    def close(self) -> None:
        """End the subprocess, if it has started."""
        if "bridge" in vars(self):
            self.bridge.close()


@final
class ClembenchEpisode:
    """One episode; the task is {"experiment", "instance", "players": names by seat}, and "mock" plays by script.

    `reward_of` gives the reward of the scores of an episode: `main_score_reward` unless another is given.
    """

    blocking = True

    def __init__(
        self, bridge: Bridge, seats: Sequence[str], reward_of: Callable[[Records], float] | None = None
    ) -> None:
        self.bridge, self.seats, self.reward_of = bridge, seats, reward_of or main_score_reward
        self.number = 0
        self.acted: list[str] = []
        self.over: Over | None = None
        self.failure = ""

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """The first player's prompt; empty if the game ends without asking. Raises EpisodeFailed if it cannot start."""
        self.bridge.stop(self.number)
        names = task.get("players") or {}
        players = ["mock" if names.get(seat) in MOCKS else str(names.get(seat, "model")) for seat in self.seats]
        self.acted, self.over, self.failure = [], None, ""
        self.number, first = self.bridge.start(task["experiment"], task["instance"], players, seed)
        if isinstance(first, Over) and first.error:
            raise EpisodeFailed(first.error)
        return self._receive(first).observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """The game's answer to the reply of the one player that it has asked."""
        [(seat, reply)] = actions.items()
        self.acted.append(seat)
        try:
            return self._receive(self.bridge.reply(self.number, reply))
        except EpisodeFailed as error:
            self.failure = str(error)
            return self._end()

    def records(self) -> Records:
        """clembench's records and scores, or the failure."""
        over = self.over or Over(None, None, None)
        failure = self.failure or over.error or over.scorer_error
        return Records(over.interactions, over.requests or (), over.scores, failure)

    def _receive(self, message: Asked | Over) -> StepResult:
        if isinstance(message, Asked):
            seat = self.seats[message.seat - 1]
            return StepResult({seat: Observation(from_messages(message.messages))})
        self.over = message
        return self._end()

    def _end(self) -> StepResult:
        """The end, with a request for the reward of each player that acted."""
        records = self.records()
        if records.failure:
            columns: dict[str, Any] = {FAILED: records.failure}
        else:
            columns = {REWARD: self.reward_of(records)}
        requests = [ScoreRequest(seat, "", "", columns) for seat in dict.fromkeys(self.acted)]
        info = {n.lower().replace(" ", "_"): float(v) for n, v in records.outcome.items() if _is_number(v)}
        return StepResult(terminated=True, info=info, score_requests=requests)


def main_score_reward(records: Records) -> float:
    """Main Score / 100, and -1 for an aborted game, whose Main Score is not a number."""
    score: Any = records.outcome.get(MAIN_SCORE)
    return float(score) / 100 if _is_number(score) else -1.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
