"""Gymnasium's Blackjack-v1 as text: an example of adapting an environment that knows no text.

Gymnasium is an extra: `pip install 'lmgym[gym]'`.
"""

import re
from collections.abc import Mapping
from typing import final

from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

MOVES = {"stick": 0, "hit": 1}


@final
class Blackjack:
    """A hand of Blackjack-v1 with its rewards: 1 won, 0 drawn, -1 lost. The seed deals; the task is ignored.

    The reply must contain exactly one of the words hit and stick; any other is an illegal move, which earns
    `illegal_reward` and leaves the hand unchanged. Truncated after `max_moves` moves, including illegal ones. `info`:
    illegal moves.
    """

    def __init__(self, max_moves: int = 12, illegal_reward: float = -1.0) -> None:
        if max_moves < 1:
            raise InputError(f"max_moves={max_moves}; needed: 1 or more")
        try:
            import gymnasium
        except ImportError as error:
            raise InputError("Blackjack needs gymnasium, which is not installed: pip install 'lmgym[gym]'") from error
        self.table = gymnasium.make("Blackjack-v1")
        self.max_moves, self.illegal_reward = max_moves, illegal_reward
        self.moves, self.illegal = 0, 0
        self.hand = (0, 0, 0)

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Deal a hand."""
        self.hand, _ = self.table.reset(seed=seed)
        self.moves, self.illegal = 0, 0
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Draw a card or end the hand."""
        self.moves += 1
        move, terminated, truncated = _move(actions[POLICY]), False, False
        if move is None:
            self.illegal += 1
            reward = self.illegal_reward
        else:
            self.hand, earned, terminated, truncated, _ = self.table.step(move)
            reward = float(earned)
        truncated = not terminated and (truncated or self.moves >= self.max_moves)
        shown = {} if terminated else self._shown()
        return StepResult(shown, {POLICY: reward}, terminated, truncated, info={"illegal": self.illegal})

    def _shown(self) -> dict[str, Observation]:
        total, dealer, ace = self.hand
        held = f"{total} with an ace that counts 11" if ace else f"{total}"
        text = f"You hold {held}. The dealer shows {'an ace' if dealer == 1 else dealer}. Hit or stick?"
        return {POLICY: Observation(Conversation((Turn("user", text),)), tuple(MOVES))}


def _move(reply: str) -> int | None:
    """Blackjack-v1's action; None for a reply with neither word, or both."""
    moves = MOVES.keys() & set(re.findall("[a-z]+", reply.lower()))
    return MOVES[moves.pop()] if len(moves) == 1 else None
