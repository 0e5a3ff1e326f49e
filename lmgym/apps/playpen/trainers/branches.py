"""Pairs for DPO from branches: siblings of one branching point, the best against the worst.

A game is played once; each of the learner's replies is then a branching point, at which the game is forked by replay
and the learner replies anew, several times. Siblings read the same prompt, and each is worth the outcome of its game.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lmgym.apps.playpen.players import Player
from lmgym.apps.playpen.playing import Game, conversation_of
from lmgym.apps.playpen.trainers.learning_games import (
    LEARNER,
    OVER,
    GameReward,
    LearningGame,
    TeacherReplies,
    paper_reward,
)
from lmgym.environments.protocol import Sample
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling
from lmgym.text import Conversation, messages


class _Branch:
    """One game, played on from a beginning."""

    def __init__(
        self, environment: LearningGame, task: Mapping[str, Any], seed: int, member: int,
        beginning: Sequence[Mapping[str, str]],
    ) -> None:  # fmt: skip
        self.environment, self.seed, self.member = environment, seed, member
        self.actions: list[Mapping[str, str]] = []
        self.turns: list[tuple[int, Conversation, str]] = []
        """of the learner: (step, prompt, reply)"""
        self.reward: float | None = None
        self.observations = dict(environment.reset(task, seed))
        for action in beginning:
            self.step(action)

    def step(self, action: Mapping[str, str]) -> None:
        """Take a reply."""
        result = self.environment.step(action)
        self.actions.append(action)
        self.observations = {} if result.terminated else dict(result.observations)
        if result.restarted:
            self.turns.clear()
        if result.terminated:
            samples = [Sample(request, "", Completion("", "eos")) for request in result.score_requests]
            [found] = GameReward().rewards(samples)
            self.reward = None if isinstance(found.reward, tuple) else found.reward


def branch_pairs(
    learner: Player, teacher: Player | None, games: Sequence[Game], tasks: Sequence[Mapping[str, Any]], branches: int,
    seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows with prompt, chosen and rejected; points whose replies are all worth the same give none.

    Raises InputError if no point gives a pair, and for a greedy learner, whose replies are all equal.
    """
    if branches < 2:
        raise InputError(f"branches={branches}; needed: 2 or more")
    if learner.temperature == 0:
        raise InputError("branches of a greedy learner are all equal; needed: a temperature above 0, as -T 0.7")
    named = {game.spec.name: game for game in games}
    programmed = bool(teacher and teacher.is_programmed)

    def begin(number: int, member: int, beginning: Sequence[Mapping[str, str]]) -> _Branch:
        game = LearningGame(named, programmed, paper_reward)
        return _Branch(game, tasks[number], seed + number, member, beginning)

    trunks = [begin(number, 0, ()) for number in range(len(tasks))]
    _play_on(trunks, learner, teacher)
    siblings: list[tuple[Conversation, list[tuple[str, float]]]] = []
    forks: list[tuple[int, _Branch]] = []
    for number, trunk in enumerate(trunks):
        for step, prompt, reply in trunk.turns:
            if trunk.reward is not None:
                siblings.append((prompt, [(reply, trunk.reward)]))
                again = [begin(number, k, trunk.actions[:step]) for k in range(1, branches)]
                forks += [(len(siblings) - 1, branch) for branch in again]
    _play_on([branch for _, branch in forks], learner, teacher)
    for point, branch in forks:
        # a branch that was played once more may have read another prompt
        if branch.reward is not None and branch.turns and branch.turns[0][1] == siblings[point][0]:
            siblings[point][1].append((branch.turns[0][2], branch.reward))
    rows = [row for prompt, replies in siblings if (row := _pair(prompt, replies))]
    if not rows:
        raise InputError(
            f"none of {len(siblings)} branching points has replies of different worth; needed: games that the learner "
            "sometimes wins and sometimes loses, more branches, or a higher temperature"
        )
    return rows


def _pair(prompt: Conversation, replies: Sequence[tuple[str, float]]) -> dict[str, Any] | None:
    best, worst = max(replies, key=lambda r: r[1]), min(replies, key=lambda r: r[1])
    # one reply may have led to a win and to a loss, by what was said later: it is no pair
    if best[1] == worst[1] or best[0] == worst[0] or not best[0].strip() or not worst[0].strip():
        return None
    said = [[{"role": "assistant", "content": reply}] for reply, _ in (best, worst)]
    return {"prompt": messages(prompt), "chosen": said[0], "rejected": said[1]}


def _play_on(branches: Sequence[_Branch], learner: Player, teacher: Player | None) -> None:
    """Play all to their ends, a request for each agent's turns at once."""
    others = TeacherReplies(teacher) if teacher and not teacher.is_programmed else None
    while playing := [branch for branch in branches if branch.observations]:
        for agent in (LEARNER, "teacher"):
            acting = [branch for branch in playing if agent in branch.observations]
            if not acting:
                continue
            prompts = [conversation_of(branch.observations[agent]) for branch in acting]
            seeds = [_seed(branch) for branch in acting]
            if agent == LEARNER:
                texts = [completion.text for completion in learner.reply(prompts, seeds)]
            else:
                assert others is not None, "a game's own script replies within the environment"
                found = others.reply(prompts, 1, Sampling(seed=tuple(seeds)))
                texts = [completion.text for [completion] in found]
            for branch, prompt, text in zip(acting, prompts, texts, strict=True):
                if agent == LEARNER and prompt.turns[-1].text != OVER:
                    branch.turns.append((len(branch.actions), prompt, text))
                branch.step({agent: text})


def _seed(branch: _Branch) -> int:
    return (branch.seed * 1_000_003 + len(branch.actions) * 10_007 + branch.member * 101) % 2**63
