"""Zero-sum games of two players who move in turn, from rules without any text of the engine; and players of them.

Design decisions:
- The rewards of both sides add up to 0: 1 and -1, or 0 and 0.
- An illegal reply loses. The game ends there, or, if the other side has not moved yet, after its move: so both sides
  act in every game, and a policy that plays both has as many episodes of either.
"""

from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, Protocol, final

import numpy as np

from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.text import Conversation, Turn

SIDES = ("first", "second")


class Rules(Protocol):
    """A game. Rules and states are hashable; the player to move is known from the number of moves."""

    def __hash__(self) -> int: ...

    @property
    def about(self) -> str:
        """The first line of a prompt, before the position."""
        ...

    def start(self) -> Hashable:
        """The position before the first move."""
        ...

    def moves(self, state: Any) -> Mapping[str, Any]:
        """The legal replies, and the position after each."""
        ...

    def result(self, state: Any) -> float | None:
        """For the player who moved last: 1 won, 0 drawn; None if the game goes on."""
        ...

    def show(self, state: Any, side: int) -> str:
        """The position for the player to move, number `side`."""
        ...

    def read(self, text: str) -> Any:
        """The position from the text of `show`."""
        ...

    def move(self, reply: str) -> str:
        """A reply as `moves` names it; any other text for a reply that is no move."""
        ...


@final
class Alternating:
    """A game between the agents "first" and "second"; task and seed are ignored.

    `info`: moves, and shares of games won by either side, drawn, and lost by an illegal reply.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.state: Any = None
        self.moved, self.forfeited = 0, ""

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Show the first player the start."""
        self.state, self.moved, self.forfeited = self.rules.start(), 0, ""
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the reply of the player to move."""
        [(side, reply)] = actions.items()
        following = self.rules.moves(self.state).get(self.rules.move(reply))
        self.moved += 1
        if following is None:
            self.forfeited = self.forfeited or side
        elif not self.forfeited:
            self.state = following
        if self.forfeited:
            return self._end(self.forfeited, -1.0) if self.moved > 1 else StepResult(self._shown())
        result = self.rules.result(self.state)
        return StepResult(self._shown()) if result is None else self._end(side, result)

    def _end(self, side: str, reward: float) -> StepResult:
        other = SIDES[side == SIDES[0]]
        rewards = {side: reward, other: -reward}
        info = {"moves": float(self.moved), "drawn": float(reward == 0), "illegal": float(bool(self.forfeited))}
        return StepResult({}, rewards, True, info=info | {f"{s}_won": float(r > 0) for s, r in rewards.items()})

    def _shown(self) -> dict[str, Observation]:
        side = self.moved % 2
        prompt = Conversation((Turn("user", self.rules.show(self.state, side)),), self.rules.about)
        return {SIDES[side]: Observation(prompt, tuple(self.rules.moves(self.state)))}


def random_move(rules: Rules, conversation: Conversation, rng: np.random.Generator) -> str:
    """Any legal move; with the rules given, a script for a `ScriptedGenerator`, as those below."""
    return _any(list(rules.moves(_position(rules, conversation))), rng)


def one_move_ahead(rules: Rules, conversation: Conversation, rng: np.random.Generator) -> str:
    """A move that wins, else one after which the other cannot win at once, else any."""
    moves = rules.moves(_position(rules, conversation))
    winning = [move for move, state in moves.items() if rules.result(state) == 1]
    safe = [move for move, state in moves.items() if rules.result(state) is not None or not _can_win(rules, state)]
    return _any(winning or safe or list(moves), rng)


def minimax(rules: Rules, conversation: Conversation, rng: np.random.Generator) -> str:
    """Any of the moves that are best against a perfect player and, of those, against one who moves at random."""
    values = {move: _worth(rules, state) for move, state in rules.moves(_position(rules, conversation)).items()}
    return _any([move for move, value in values.items() if value == max(values.values())], rng)


def _position(rules: Rules, conversation: Conversation) -> Any:
    return rules.read(conversation.turns[-1].text)


def _any(moves: list[str], rng: np.random.Generator) -> str:
    return moves[int(rng.integers(len(moves)))]


def _can_win(rules: Rules, state: Any) -> bool:
    return any(rules.result(after) == 1 for after in rules.moves(state).values())


@cache
def _worth(rules: Rules, state: Any) -> tuple[float, float]:
    """(value against a perfect player, against a random one) for the player who has just moved to `state`."""
    result = rules.result(state)
    if result is not None:
        return result, result
    perfect, average = [], []
    for reply in rules.moves(state).values():
        perfect.append(_worth(rules, reply)[0])
        lost = rules.result(reply)
        answers = [] if lost is not None else [_worth(rules, answer) for answer in rules.moves(reply).values()]
        average.append(max(answers)[1] if lost is None else -lost)
    return -max(perfect), sum(average) / len(average)
