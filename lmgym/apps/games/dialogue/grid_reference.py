"""A reference game: one player describes a grid, the other finds it among three."""

import re
from collections.abc import Mapping
from typing import final

import numpy as np

from lmgym.apps.games.dialogue.dialogue import Dialogue, Drawn
from lmgym.apps.games.dialogue.instances import instance_of, needed_fields
from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.games.dialogue.scoring import RewardKind, abort, check_reward_kind, lose, success
from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.generation.protocol import ReplyScript
from lmgym.text import Conversation

NAME = "grid_reference"
GIVER, FOLLOWER = "instruction_giver", "instruction_follower"
ROLES = (GIVER, FOLLOWER)
EXPERIMENTS = ("lines", "scattered")
SIZE = 5
FILLED, EMPTY = "X", "□"
FEWEST_DIFFERENT, MOST_DIFFERENT = 2, 6  # cells in which a scattered distractor differs from the target
NUMBERS = ("first", "second", "third")
GIVER_GRIDS = ("player_1_target_grid", "player_1_second_grid", "player_1_third_grid")
FOLLOWER_GRIDS = tuple(f"player_2_{number}_grid" for number in NUMBERS)
FIELDS = (*GIVER_GRIDS, *FOLLOWER_GRIDS, "target_grid_name")
EXPRESSION = re.compile(r"expression:\s*(\S.*)", re.I | re.S)
ANSWER = re.compile(r"answer:\s*(first|second|third|[123])[.!]?", re.I)

DESCRIBE = """Here are three grids of 5 by 5 cells, X for a filled cell and □ for an empty one. Your partner sees the \
same grids in another order and has to find the target. Describe it so that it cannot be taken for one of the others.

Reply with Expression: and a description, as in
Expression: only the upper row is filled

Target:

{}

Second grid:

{}

Third grid:

{}"""
FIND = """Here are three grids of 5 by 5 cells, X for a filled cell and □ for an empty one. Your partner describes one \
of them. Find it.

Reply with Answer: and first, second or third, as in
Answer: second

First grid:

{}

Second grid:

{}

Third grid:

{}

Expression: {}"""


@final
class GridReference:
    """Three grids; the agents are "instruction_giver" and "instruction_follower", who act once each.

    Main Score is 100 for the right grid, otherwise 0. A reply without Expression: or Answer:, or an answer of none of
    the three, aborts. `reward`: see scoring.py.
    """

    def __init__(self, reward: RewardKind = "main_score") -> None:
        check_reward_kind(reward)
        self.reward: RewardKind = reward
        self.grids: list[str] = []
        self.target: list[str] = []

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Show the giver its grids."""
        instance = instance_of(task, seed, draw, EXPERIMENTS)
        *grids, self.target = needed_fields(instance, NAME, FIELDS)
        self.grids = grids[3:]
        self.dialogue = Dialogue.begin(NAME, ROLES, task, instance, self.reward)
        self.dialogue.tell(GIVER, DESCRIBE.format(*grids[:3]))
        return self.dialogue.waiting_for(GIVER).observations

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the expression or the answer."""
        [(player, reply)] = actions.items()
        said = self.dialogue.hear(player, reply)
        if player == GIVER:
            if not (found := EXPRESSION.fullmatch(said)):
                return self.dialogue.end(abort(GIVER), "invalid format", "no Expression:")
            self.dialogue.note("parse", found[1])
            self.dialogue.tell(FOLLOWER, FIND.format(*self.grids, found[1]))
            return self.dialogue.waiting_for(FOLLOWER)
        if not (found := ANSWER.fullmatch(said)):
            return self.dialogue.end(abort(FOLLOWER), "invalid format", "no Answer: with a grid's number")
        if found[1].lower() in self.target:
            return self.dialogue.end(success(100.0), "parse_correct", found[1])
        return self.dialogue.end(lose(), "parse_wrong", found[1])

    def records(self) -> Records:
        """clembench's records and scores, once the episode has ended."""
        return self.dialogue.records()


def draw(rng: np.random.Generator, experiment: str) -> Drawn:
    """Three different grids: "lines" of whole rows and columns, or "scattered" cells that differ in a few."""
    target = _lines(rng) if experiment == "lines" else rng.random((SIZE, SIZE)) < 0.5
    grids = [target]
    while len(grids) < len(NUMBERS):
        other = _lines(rng) if experiment == "lines" else _changed(target, rng)
        if not any((other == grid).all() for grid in grids):
            grids.append(other)
    texts = [to_text(grid) for grid in grids]
    order = rng.permutation(len(NUMBERS)).tolist()
    place = order.index(0)
    instance = dict(zip(GIVER_GRIDS, texts, strict=True))
    instance |= dict(zip(FOLLOWER_GRIDS, (texts[i] for i in order), strict=True))
    return Drawn(texts[0], {**instance, "target_grid_name": [NUMBERS[place], str(place + 1)]})


def _lines(rng: np.random.Generator) -> np.ndarray:
    """[5, 5] bool: two or three whole rows or columns."""
    grid = np.zeros((SIZE, SIZE), dtype=bool)
    for line in rng.choice(2 * SIZE, int(rng.integers(2, 4)), replace=False):
        if line < SIZE:
            grid[line] = True
        else:
            grid[:, line - SIZE] = True
    return grid


def _changed(grid: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    cells = rng.choice(grid.size, int(rng.integers(FEWEST_DIFFERENT, MOST_DIFFERENT + 1)), replace=False)
    other = grid.copy()
    other.flat[cells] ^= True
    return other


def to_text(grid: np.ndarray) -> str:
    """Rows of X and □."""
    return "\n".join(" ".join(FILLED if cell else EMPTY for cell in row) for row in grid)


def describe(conversation: Conversation, rng: np.random.Generator) -> str:
    """The columns of the filled cells, row by row."""
    target = conversation.turns[0].text.split("Target:\n\n")[1].split("\n\n")[0]
    rows = [[str(i + 1) for i, cell in enumerate(row.split()) if cell == FILLED] for row in target.splitlines()]
    return "Expression: filled columns from the upper row on: " + "; ".join(" ".join(row) or "none" for row in rows)


def find(conversation: Conversation, rng: np.random.Generator) -> str:
    """The grid that agrees in most cells with such an expression; the first for another."""
    text = conversation.turns[0].text
    grids = re.findall(rf"(?:First|Second|Third) grid:\n\n((?:[{FILLED}{EMPTY} ]+\n?)+)", text)
    said = text.rsplit(": ", 1)[-1].split(";")
    wanted = "".join(FILLED if str(i + 1) in row.split() else EMPTY for row in said for i in range(SIZE))
    cells = [re.sub(r"\s", "", grid) for grid in grids]
    agreement = [sum(a == b for a, b in zip(grid, wanted, strict=False)) for grid in cells]
    return f"Answer: {NUMBERS[int(np.argmax(agreement))]}"


def find_another(conversation: Conversation, rng: np.random.Generator) -> str:
    """A grid after the one that `find` finds."""
    found = find(conversation, rng).removeprefix("Answer: ")
    return f"Answer: {NUMBERS[(NUMBERS.index(found) + 1) % len(NUMBERS)]}"


SCRIPTS: dict[str, dict[str, ReplyScript]] = {
    "winner": {GIVER: describe, FOLLOWER: find},
    "loser": {GIVER: describe, FOLLOWER: find_another},
    "rule_breaker": {
        GIVER: lambda conversation, rng: "The grid has some filled cells.",
        FOLLOWER: lambda conversation, rng: "Answer: fourth",
    },
}
