"""A game that branches: at each turn that a condition holds for, several replies to the same context, and all go on.

The branches are a tree, whose nodes know the environment after a reply. Branches that have ended stay leaves, and the
others are played on; an episode is done once all have ended.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, GameTask
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.trainers.stepping import Context, GameEnv, SeatedPlayer, ask, opened_tasks
from lmgym.errors import InputError

Criteria = Callable[[GameEnv], bool]
"""whether to branch at the turn of an environment"""


@dataclass(eq=False)
class GameTreeNode:
    """A point of an episode: the reply that led to it, which the root has not, and the environment that has it."""

    env: GameEnv
    """which goes on with the first branch below"""
    parent: "GameTreeNode | None" = None
    context: Context = field(default_factory=dict)
    response: str = ""
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    branches: "list[GameTreeNode]" = field(default_factory=list)

    def __iter__(self) -> "Iterator[GameTreeNode]":
        return iter(self.branches)

    def unwrap(self) -> GameEnv:
        """The environment."""
        return self.env

    @property
    def path(self) -> "list[GameTreeNode]":
        """The nodes from the first reply to this one."""
        return [] if self.parent is None else [*self.parent.path, self]


@dataclass(frozen=True)
class GameTree:
    """The branches of an episode."""

    root: GameTreeNode

    def find_leaves(self) -> list[GameTreeNode]:
        """The ends of the branches."""
        return [node for node in self.nodes() if not node.branches]

    def nodes(self) -> Iterator[GameTreeNode]:
        """The root, and all below it."""
        stack = [self.root]
        while stack:
            yield (node := stack.pop())
            stack += reversed(node.branches)


@dataclass(frozen=True)
class BranchingResponse:
    """A reply, and the branch that it belongs to."""

    node: GameTreeNode
    env: GameEnv
    context: Context
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class BranchingPlayer:
    """The players whose turn it is, one in each branch: called with their contexts, several replies to each."""

    nodes: Sequence[GameTreeNode]
    factor: int
    criteria: Criteria

    @property
    def model(self) -> Model:
        """Of the first branch."""
        return self.nodes[0].env.current_player.model

    def __call__(self, contexts: Sequence[Context]) -> list[list[BranchingResponse]]:
        """The replies to each context, each in an environment of its own."""
        envs = [self._envs(node.env) for node in self.nodes]
        replies = iter(ask([env.current_player for some in envs for env in some]))
        return [
            [BranchingResponse(node, env, context, next(replies)) for env in some]
            for node, context, some in zip(self.nodes, contexts, envs, strict=True)
        ]

    def _envs(self, env: GameEnv) -> list[GameEnv]:
        return env.branch_out(self.factor) if self.criteria(env) else [env]


class GameBranchingEnv:
    """Episodes of one game, each a tree; without `criteria` it branches at each turn."""

    def __init__(
        self,
        game: Game,
        models: Sequence[Model],
        tasks: Sequence[GameTask],
        task_iterations: int | None = None,
        branching_factor: int = 2,
        branching_criteria: Criteria | None = None,
    ) -> None:
        if branching_factor < 2:
            raise InputError(f"branching_factor={branching_factor}; needed: 2 or more, or make_env")
        self.factor, self.criteria = branching_factor, branching_criteria or (lambda env: True)
        self.env = GameEnv(game, models, tasks, task_iterations)
        self._grow()

    def _grow(self) -> None:
        self.tree = GameTree(GameTreeNode(self.env))
        self.active = [self.tree.root]

    @property
    def spec(self) -> Spec:
        """The registry's entry of the game."""
        return self.env.spec

    @property
    def task(self) -> GameTask:
        """The instance that is played."""
        return self.env.task

    def reset(self) -> None:
        """Begin the next instance."""
        self.env.reset()
        self._grow()

    def is_done(self) -> bool:
        """True once all branches have ended."""
        return not self.active

    def observe(self) -> tuple[BranchingPlayer | SeatedPlayer, Any]:
        """The players of the branches that go on, and the latest message to each."""
        player = BranchingPlayer(self.active, self.factor, self.criteria)
        return player, [node.env.current_player.context for node in self.active]

    def step(self, responses: Sequence[Sequence[BranchingResponse]]) -> tuple[list[list[bool]], list[list[Any]]]:
        """(whether each branch has ended, what the game tells) by context and reply."""
        grown = [[self._add(response) for response in some] for some in responses]
        self.active = [node for some in grown for node in some if not node.done]
        return [[n.done for n in some] for some in grown], [[n.info for n in some] for some in grown]

    def _add(self, response: BranchingResponse) -> GameTreeNode:
        done, info = response.env.step(response.text)
        node = GameTreeNode(response.env, response.node, response.context, response.text, done, info)
        response.node.branches.append(node)
        return node

    def get_active_tree(self) -> GameTree:
        """The tree of the episode."""
        return self.tree

    def branches(self) -> list[GameEnv]:
        """The environments of this episode at the ends of its branches."""
        return [leaf.env for leaf in self.tree.find_leaves()]


PlayPenEnv = GameEnv | GameBranchingEnv
"""either environment"""


@contextmanager
def make_tree_env(
    game_spec: Spec,
    players: Sequence[Model | None],
    shuffle_instances: bool = False,
    task_iterations: int | None = None,
    instances_filename: str | None = None,
    branching_factor: int = 2,
    branching_criteria: Criteria | None = None,
    branching_model: Model | None = None,
) -> Iterator[GameBranchingEnv]:
    """As `make_env`, with so many branches at each turn that `branching_criteria` holds for, or of `branching_model`.

    Raises InputError as `make_env`, and for a factor below 2.
    """
    criteria = branching_criteria
    if branching_model is not None:
        criteria = lambda env: env.current_player.model is branching_model  # noqa: E731
    with opened_tasks(game_spec, shuffle_instances, instances_filename) as (game, tasks):
        seated = [player for player in players if player is not None]
        yield GameBranchingEnv(game, seated, tasks, task_iterations, branching_factor, criteria)
