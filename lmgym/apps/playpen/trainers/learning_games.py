"""Games as environments to learn in: the learner in one seat or in all, a teacher in the others.

Design decisions:
- All seats of the learner are one agent, which each time sees its own seat's view: in self-play one episode holds the
  replies of both players, and the game's outcome is credited to all of them.
- The teacher's replies are context, which is never trained on: it is an agent with a generator of its own, or the
  game's own script.
- A game that the teacher's reply aborted is played once more from its beginning, and the learner's former replies
  leave no steps. If the teacher aborts again, or if the learner never got a turn, or if the game or its scorer failed,
  the reward is masked with the reason.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from lmgym.apps.games.dialogue.records import RecordedEnvironment, Records
from lmgym.apps.games.dialogue.scoring import ABORTED, MAIN_SCORE
from lmgym.apps.playpen.clembench.clembench_game import FAILED, REWARD, main_score_reward
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, tasks_of
from lmgym.environments.protocol import EpisodeFailed, Observation, Sample, SampleReward, ScoreRequest, StepResult, Task
from lmgym.errors import InputError, TooLong
from lmgym.generation.protocol import Completion, Progress, Sampling
from lmgym.text import Conversation

LEARNER, TEACHER = "learner", "teacher"
OVER = "The game is over."


def paper_reward(records: Records) -> float:
    """1 for success, 0 for a loss, -1 for an aborted game, as in Playpen's paper."""
    outcome = records.outcome
    return -1.0 if outcome.get(ABORTED) == 1 else float(outcome.get("Success") == 1)


def learning_tasks(
    games: Sequence[Game], self_play: bool, teacher: str = TEACHER, most: int | None = None
) -> list[dict[str, Any]]:
    """A task for each instance, and with a teacher for each instance and each seat of the learner.

    `teacher` is its model's name, "mock" for the game's own script. `most` instances of each game.
    """
    tasks = []
    for game in games:
        seats = [tuple(game.seats)] if self_play else [(seat,) for seat in game.seats]
        for task in tasks_of(game)[:most]:
            for own in seats:
                names = {seat: LEARNER if seat in own else teacher for seat in game.seats}
                given = {"experiment": task.experiment, "instance": task.instance, "players": names}
                tasks.append({"game": game.spec.name, "learner": own, **given})
    return tasks


def split_tasks(
    tasks: Sequence[dict[str, Any]], held_out: float, seed: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(tasks to learn from, tasks held out): a share of each game's instances, and at least one, with all their seats.

    Raises InputError for a game with a single instance.
    """
    learned, kept = [], []
    for game in dict.fromkeys(task["game"] for task in tasks):
        own = [task for task in tasks if task["game"] == game]
        keys = list(dict.fromkeys(_instance_key(task) for task in own))
        if len(keys) < 2:
            raise InputError(f"{game} has one instance; needed: two or more, of which one is held out")
        order = np.random.default_rng([seed, len(keys)]).permutation(len(keys))
        chosen = {keys[i] for i in order[: max(1, round(held_out * len(keys)))]}
        learned += [task for task in own if _instance_key(task) not in chosen]
        kept += [task for task in own if _instance_key(task) in chosen]
    return learned, kept


def _instance_key(task: Mapping[str, Any]) -> tuple[str, str]:
    return str(task["experiment"].get("name")), str(task["instance"].get("game_id"))


@final
class LearningGame:
    """One episode, of whichever game the task names, given to `record` at its end. `blocking` if any game is."""

    def __init__(
        self,
        games: Mapping[str, Game],
        teacher_is_programmed: bool = False,
        reward_of: Callable[[Records], float] = main_score_reward,
        record: Callable[[Task, Records], None] = lambda task, records: None,
    ) -> None:
        self.games, self.teacher_is_programmed, self.reward_of = games, teacher_is_programmed, reward_of
        self.record = record
        self.blocking = any(getattr(game.environment(), "blocking", False) for game in games.values())

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """The first turn of the learner or the teacher."""
        self.task, self.seed = task, seed
        self.game = self.games[task["game"]]
        self.is_second = False
        return self._begin().observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """The next turn, or the end with a request for the learner's reward."""
        [(agent, reply)] = actions.items()
        if not self.pending:  # the turn of a learner who had none
            return self._end()
        self.learner_acted |= agent == LEARNER
        self.teacher_spoke_last = agent == TEACHER
        self._give(reply)
        return self._turn()

    def _begin(self) -> StepResult:
        """A new game, up to the first turn that no script takes."""
        self.inner: RecordedEnvironment = self.game.environment()
        self.learner_acted: bool = False
        self.teacher_spoke_last = False
        self.failure, self.steps = "", 0
        self.replies: dict[str, str] = {}
        self.pending: dict[str, Observation] = {}
        try:
            self.pending = dict(self.inner.reset(self.task, self.seed))
        except EpisodeFailed as error:
            self.failure = str(error)
        return self._turn()

    def _give(self, reply: str) -> None:
        """A reply for the seat whose turn it is; the game goes on once all that it asked have one."""
        self.replies[self._seat()] = reply
        if len(self.replies) < len(self.pending):
            return
        step, self.replies = dict(self.replies), {}
        self.steps += 1
        try:
            self.pending = _next(self.inner.step(step))
        except EpisodeFailed as error:
            self.failure, self.pending = str(error), {}

    def _seat(self) -> str:
        return next(seat for seat in self.pending if seat not in self.replies)

    def _turn(self) -> StepResult:
        """The observation of the seat whose turn it is; scripts reply at once."""
        while self.pending:
            seat = self._seat()
            agent = LEARNER if seat in self.task["learner"] else TEACHER
            script = self.game.script(seat) if agent == TEACHER and self.teacher_is_programmed else None
            if script is None:
                return StepResult({agent: self.pending[seat]})
            self.teacher_spoke_last = True
            rng = np.random.default_rng([self.seed % 2**32, self.steps])
            self._give(script(self.pending[seat].conversation, rng))
        if self._aborted_by_teacher() and not self.is_second and not self.teacher_is_programmed:
            self.is_second = True
            return replace(self._begin(), restarted=True)
        if not self.learner_acted:  # it has a turn whose reward is masked: every game has an episode of the learner
            return StepResult({LEARNER: Observation(OVER)})
        return self._end()

    def _aborted_by_teacher(self) -> bool:
        return not self.failure and self.teacher_spoke_last and self.inner.records().outcome.get(ABORTED) == 1

    def _end(self) -> StepResult:
        records = self.inner.records() if not self.failure else Records(failure=self.failure)
        self.record(self.task, records)
        fault = records.failure
        if not fault and self._aborted_by_teacher():
            fault = "the teacher aborted the game"
        if not fault and not self.learner_acted:
            fault = "the game ended before the learner's turn"
        columns: Task = {FAILED: fault} if fault else {REWARD: self.reward_of(records)}
        score = records.outcome.get(MAIN_SCORE)
        info = {
            "played": float(not fault and records.outcome.get(ABORTED) != 1),
            "success": float(records.outcome.get("Success") == 1),
            "main_score": float(score) if isinstance(score, int | float) and score == score else 0.0,
        }
        request = ScoreRequest(LEARNER, "", "", columns)
        return StepResult(terminated=True, info=info, score_requests=[request])


def _next(result: StepResult) -> dict[str, Observation]:
    return {} if result.terminated or result.truncated else dict(result.observations)


@final
class GameReward:
    """The reward that a game's score requests carry; None, with the reason, for an episode that is masked."""

    def rewards(self, samples: Sequence[Sample]) -> list[SampleReward]:
        """One reward a sample."""
        columns = [sample.request.columns for sample in samples]
        return [SampleReward(c.get(REWARD), error=str(c.get(FAILED, ""))) for c in columns]


@dataclass(frozen=True)
class TeacherReplies:
    """The teacher as the generator of an agent: its own temperature and length, and no reply to what is too long."""

    model: Model

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation; of `sampling` only the seeds are used."""
        own = replace(self.model.sampling, seed=sampling.seed)
        try:
            return self.model.generator.reply(conversations, n, own)
        except TooLong:
            if len(conversations) == 1:
                return [[Completion("", "length")] * n]  # which the game's rule aborts
        seeds = (
            sampling.seed
            if isinstance(sampling.seed, tuple)
            else [sampling.seed + i for i in range(len(conversations))]
        )
        alone = [self.reply([c], n, replace(sampling, seed=(s,))) for c, s in zip(conversations, seeds, strict=True)]
        return [replies for [replies] in alone]
