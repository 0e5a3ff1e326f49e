"""Pairs for DPO from branches: siblings of one branching point, the best against the worst.

A game is played once; each of the learner's replies is then a branching point, at which the game is forked by replay
and the learner replies anew, several times. Siblings read the same prompt, and each is worth the outcome of its game.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lmgym.apps.playpen.clembench.clembench_game import REWARD
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game
from lmgym.apps.playpen.trainers.learning_games import (
    LEARNER,
    OVER,
    TEACHER,
    LearningGame,
    TeacherReplies,
    paper_reward,
)
from lmgym.environments.engine import play
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import ActionRequest, GeneratorPlayer, Player
from lmgym.environments.protocol import Action
from lmgym.errors import InputError
from lmgym.text import Conversation, messages


class LearnerTurn(NamedTuple):
    """A reply of the learner."""

    step: int
    """the number of the episode's step"""
    prompt: Conversation
    reply: str


class Fork(NamedTuple):
    """A game to play: a task, the actions that it begins with, and its number among the branches of a point."""

    task: int
    beginning: Sequence[Mapping[str, str]] = ()
    member: int = 0


def branch_pairs(
    learner: Model,
    teacher: Model | None,
    games: Sequence[Game],
    tasks: Sequence[Mapping[str, Any]],
    branches: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows with prompt, chosen and rejected; points whose replies are all worth the same give none.

    Raises InputError if no point gives a pair, and for a greedy learner, whose replies are all equal.
    """
    if branches < 2:
        raise InputError(f"branches={branches}; needed: 2 or more")
    if learner.temperature == 0:
        raise InputError("branches of a greedy learner are all equal; needed: a temperature above 0, as -T 0.7")
    named = {game.spec.name: game for game in games}
    programmed = bool(teacher and teacher.is_programmed)
    recorded = RecordedLearner(GeneratorPlayer(learner.generator, learner.sampling))
    players: dict[str, Player] = {LEARNER: recorded}
    if teacher and not programmed:
        players[TEACHER] = GeneratorPlayer(TeacherReplies(teacher))

    def play_all(forks: Sequence[Fork]) -> list[RunningEpisode]:
        return play(
            [LearningGame(named, programmed, paper_reward) for _ in forks],
            [tasks[fork.task] for fork in forks],
            [seed + fork.task for fork in forks],
            players,
            members=[fork.member for fork in forks],
            beginnings=[fork.beginning for fork in forks],
            seed_of=_seed,
            watch=recorded.forget_if_restarted,
            stops=(Exception,),  # of a faulty game; a reward that failed is masked
        )

    siblings: list[tuple[Conversation, list[tuple[str, float]]]] = []
    forks: list[Fork] = []
    for number, trunk in enumerate(play_all([Fork(number) for number in range(len(tasks))])):
        if (worth := _reward(trunk)) is not None:
            for step, prompt, reply in recorded.turns[trunk]:
                siblings.append((prompt, [(reply, worth)]))
                forks += [Fork(number, trunk.actions[:step], member) for member in range(1, branches)]
    for place, branch in enumerate(play_all(forks)):
        prompt, replies = siblings[place // (branches - 1)]
        turns, worth = recorded.turns[branch], _reward(branch)
        # a branch that was played once more may have read another prompt
        if worth is not None and turns and turns[0].prompt == prompt:
            replies.append((turns[0].reply, worth))
    rows = [row for prompt, replies in siblings if (row := _pair(prompt, replies))]
    if not rows:
        raise InputError(
            f"none of {len(siblings)} branching points has replies of different worth; needed: games that the learner "
            "sometimes wins and sometimes loses, more branches, or a higher temperature"
        )
    return rows


def _reward(episode: RunningEpisode) -> float | None:
    """The reward of the game; None if it failed."""
    [request] = episode.result.score_requests
    return request.columns.get(REWARD)


def _pair(prompt: Conversation, replies: Sequence[tuple[str, float]]) -> dict[str, Any] | None:
    best, worst = max(replies, key=lambda r: r[1]), min(replies, key=lambda r: r[1])
    # one reply may have led to a win and to a loss, by what was said later: it is no pair
    if best[1] == worst[1] or best[0] == worst[0] or not best[0].strip() or not worst[0].strip():
        return None
    said = [[{"role": "assistant", "content": reply}] for reply, _ in (best, worst)]
    return {"prompt": messages(prompt), "chosen": said[0], "rejected": said[1]}


@dataclass
class RecordedLearner:
    """The learner, with what it read and said, but for the beginnings that were replayed."""

    player: Player
    turns: dict[RunningEpisode, list[LearnerTurn]] = field(default_factory=lambda: defaultdict(list))

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        """n replies to each observation."""
        found = self.player.act(requests, n)
        for (_, _, seen, _, _, episode), [action, *_] in zip(requests, found, strict=True):
            assert episode is not None, "branches are played by the engine"
            prompt = seen.conversation
            if prompt.turns[-1].text != OVER:
                self.turns[episode].append(LearnerTurn(episode.step_number, prompt, action.text))
        return found

    def forget_if_restarted(self, episode: RunningEpisode) -> None:
        """Drop the turns of a game that is played once more."""
        if episode.result.restarted:
            self.turns[episode].clear()


def _seed(episode: RunningEpisode, agent: str) -> int:
    return (episode.seed * 1_000_003 + episode.step_number * 10_007 + episode.member * 101) % 2**63
