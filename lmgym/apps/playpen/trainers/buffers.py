"""Buffers of the games that a trainer plays, which become rows of `datasets` for its learning.

Rows are of one perspective: a model, a player's name ("Player 2") or its role. `to_conversational_dataset` has a row
for each seat of an episode, messages as that seat saw them, and its reward. `to_preference_dataset` has one for each
branching point: of the replies to one prompt the best against the worst, each worth the mean score of the branches
that it led to. Replies that are worth the same give no row.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.trainers.branching import GameBranchingEnv, GameTree
from lmgym.apps.playpen.trainers.stepping import FAILURE, PLAYER, SCORE, Context, GameEnv, SeatedPlayer
from lmgym.console import say
from lmgym.errors import one_line
from lmgym.text import messages

if TYPE_CHECKING:
    from datasets import Dataset

Perspective = Model | str


@dataclass(frozen=True)
class GameStep:
    """A reply: the context, the reply, whether the game has ended, and what it told, with who replied."""

    context: Context
    response: str
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def player(self) -> SeatedPlayer:
        """The player that replied."""
        return self.info[PLAYER]


class GameSnapshot(NamedTuple):
    """Where a branch began: siblings have one origin."""

    origin: Hashable
    branch: int


class Sibling(NamedTuple):
    """A reply at a branching point, and the scores of the branches that it led to."""

    step: GameStep
    scores: list[float]


class RolloutBuffer:
    """Keeps nothing; a subclass keeps the steps that it is given."""

    def __init__(self, game_env: GameEnv | GameBranchingEnv) -> None:
        self.game_env = game_env

    def on_step(self, context: Any, response: Any, done: Any, info: Any) -> None:
        """Called after each step of the environment."""

    def on_done(self) -> None:
        """Called after each episode."""

    def reset(self) -> None:
        """Forget everything."""


class StepRolloutBuffer(RolloutBuffer):
    """The steps of `_collect_rollouts` by episode, each with context, response, done and info."""

    def __init__(self, game_env: GameEnv) -> None:
        super().__init__(game_env)
        self.reset()

    def on_step(self, context: Context, response: str, done: bool, info: Mapping[str, Any]) -> None:
        """Keep a step."""
        self.trajectories[-1].append({"context": context, "response": response, "done": done, "info": info})

    def on_done(self) -> None:
        """Begin the next episode's steps."""
        self.trajectories.append([])

    def reset(self) -> None:
        """Forget all steps."""
        self.trajectories: list[list[dict[str, Any]]] = [[]]

    def to_conversational_dataset(self, perspective: Perspective) -> "Dataset":
        """A row for each seat of the perspective in each episode that has ended."""
        return _conversations(
            [_whole([GameStep(**step) for step in steps]) for steps in self.trajectories], perspective
        )


class BranchingRolloutBuffer(RolloutBuffer):
    """The trees of episodes that branch."""

    def __init__(self, game_env: GameBranchingEnv) -> None:
        super().__init__(game_env)
        self.env = game_env
        self.reset()

    def on_done(self) -> None:
        """Keep the episode's tree."""
        self.forest.append(self.env.get_active_tree())

    def reset(self) -> None:
        """Forget all trees."""
        self.forest: list[GameTree] = []

    def to_conversational_dataset(self, perspective: Perspective) -> "Dataset":
        """A row for each seat of the perspective in each branch."""
        return _conversations(
            [_whole(_steps(leaf.path)) for tree in self.forest for leaf in tree.find_leaves()], perspective
        )

    def to_preference_dataset(self, perspective: Perspective, require_different_scores: bool = True) -> "Dataset":
        """A row for each point at which the perspective replied several times."""
        points: dict[Hashable, dict[int, Sibling]] = {}
        for leaf in (leaf for tree in self.forest for leaf in tree.find_leaves()):
            if (score := leaf.info.get(SCORE)) is None:
                continue
            for node, step in zip(leaf.path, _steps(leaf.path), strict=True):
                points.setdefault(id(node.parent), {}).setdefault(id(node), Sibling(step, [])).scores.append(score)
        return _preferences(points.values(), perspective, require_different_scores)


class EpisodeBuffer:
    """Episodes of a runner, one after the other."""

    def __init__(self) -> None:
        self.reset()

    def next_episode(self) -> None:
        """Begin an episode."""
        self.episodes.append([])

    def add_step(self, context: Context, response: str, done: bool, info: Mapping[str, Any]) -> None:
        """Keep a step of the episode."""
        self.episodes[-1].append(GameStep(context, response, done, info))

    def reset(self) -> None:
        """Forget all episodes."""
        self.episodes: list[list[GameStep]] = []

    def to_conversational_dataset(self, perspective: Perspective) -> "Dataset":
        """A row for each seat of the perspective in each episode that has ended."""
        return _conversations(map(_whole, self.episodes), perspective)


class BranchingEpisodeBuffer:
    """Episodes of the branching runner, and where they branched."""

    def __init__(self) -> None:
        self.reset()

    def add_trajectory(self, trajectory: list[GameStep], episode_score: float) -> None:
        """Keep the steps of a branch, from the beginning of the game to its end; a second time changes nothing."""
        self.trajectories[id(trajectory)] = (trajectory, episode_score)

    def add_branching_point(
        self, snapshot: GameSnapshot, turn: int, trajectory: list[GameStep], episode_score: float
    ) -> None:
        """Keep a branch and that it came from this point, before the step of that number."""
        self.add_trajectory(trajectory, episode_score)
        siblings = self.points.setdefault(snapshot.origin, {})
        siblings.setdefault(snapshot.branch, Sibling(trajectory[turn], [])).scores.append(episode_score)

    def reset(self) -> None:
        """Forget everything."""
        self.trajectories: dict[int, tuple[list[GameStep], float]] = {}
        self.points: dict[Hashable, dict[int, Sibling]] = {}

    def to_conversational_dataset(self, perspective: Perspective) -> "Dataset":
        """A row for each seat of the perspective in each branch."""
        return _conversations(self.trajectories.values(), perspective)

    def to_preference_dataset(self, perspective: Perspective, require_different_scores: bool = True) -> "Dataset":
        """A row for each branching point of the perspective."""
        return _preferences(self.points.values(), perspective, require_different_scores)


def _steps(path: Iterable[Any]) -> list[GameStep]:
    return [GameStep(node.context, node.response, node.done, node.info) for node in path]


def _whole(steps: list[GameStep]) -> tuple[list[GameStep], float | None]:
    """Steps with the score of their episode; None if it has not ended, or failed."""
    return steps, steps[-1].info.get(SCORE) if steps and steps[-1].done else None


def _is_seen_by(step: GameStep, perspective: Perspective) -> bool:
    player = step.player
    return player.model is perspective or perspective in (player.name, player.game_role)


def _conversations(episodes: Iterable[tuple[Sequence[GameStep], float | None]], perspective: Perspective) -> "Dataset":
    from datasets import Dataset

    rows, why = [], ""
    for steps, score in episodes:
        why = str(steps[-1].info.get(FAILURE) or why) if steps else why
        own = {step.player.name: step for step in steps if _is_seen_by(step, perspective)}  # the last of each seat
        if score is not None:
            seen = [messages(step.player.seen.conversation, step.response) for step in own.values()]
            rows += [{"messages": some, "reward": score} for some in seen]
    if rows:
        return Dataset.from_list(rows)
    failed = f"; games failed, the last of them since {one_line(why, 200)}" if why else ""
    say(f"warning: {perspective} has no turn in a game that ended with a score{failed}", error=True)
    return Dataset.from_dict({"messages": [], "reward": []})


def _preferences(
    points: Iterable[Mapping[int, Sibling]], perspective: Perspective, require_different_scores: bool
) -> "Dataset":
    from datasets import Dataset

    own = [list(s.values()) for s in points if len(s) > 1]
    own = [siblings for siblings in own if _is_seen_by(siblings[0].step, perspective)]
    pairs = [pair for siblings in own if (pair := best_and_worst(siblings, _worth, require_different_scores))]
    rows = [{"prompt": messages(best.step.player.seen.conversation), **_said(best, worst)} for best, worst in pairs]
    if rows:
        return Dataset.from_list(rows)
    say(
        f"warning: {len(own)} branching points give no pair of replies of different worth; needed: games that are "
        "sometimes won and sometimes lost, more branches, or a higher temperature (-T)",
        error=True,
    )
    return Dataset.from_dict({"prompt": [], "chosen": [], "rejected": []})


def _worth(sibling: Sibling) -> float:
    return sum(sibling.scores) / len(sibling.scores)


def _said(best: Sibling, worst: Sibling) -> dict[str, Any]:
    chosen, rejected = ([{"role": "assistant", "content": one.step.response}] for one in (best, worst))
    return {"chosen": chosen, "rejected": rejected}


def best_and_worst(
    siblings: Sequence[Sibling], worth: Callable[[Sibling], float], must_differ: bool
) -> tuple[Sibling, Sibling] | None:
    """The first of the best and the last of the worst; None if they are worth the same, or are the same text."""
    best, worst = max(siblings, key=worth), min(reversed(siblings), key=worth)
    if must_differ and (worth(best) == worth(worst) or best.step.response == worst.step.response):
        return None
    return best, worst
