"""The iterated prisoner's dilemma (Axelrod 1984): two players move at the same time; one or both are trained."""

import re
from collections.abc import Mapping
from typing import final

import numpy as np

from lmgym.environments.protocol import Observation, StepResult, Task
from lmgym.errors import InputError
from lmgym.text import Conversation, Turn

PLAYERS = ("first", "second")
# by (own move, the other's move): temptation, reward, punishment, sucker's payoff
PAYOFFS = {
    ("defect", "cooperate"): 5.0,
    ("cooperate", "cooperate"): 3.0,
    ("defect", "defect"): 1.0,
    ("cooperate", "defect"): 0.0,
}
RULES = "Each round you and another player say cooperate or defect at the same time."


@final
class PrisonersDilemma:
    """`rounds` rounds between the agents "first" and "second"; task and seed are ignored.

    A reply with the word cooperate and without the word defect cooperates; any other defects. Each player sees the game
    as a conversation of its own. `info`: rounds in which each cooperated.
    """

    def __init__(self, rounds: int = 5) -> None:
        if rounds < 1:
            raise InputError(f"rounds={rounds}; needed: 1 or more")
        self.rounds = rounds
        self.played: list[Mapping[str, str]] = []
        self.turns: dict[str, list[Turn]] = {}

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Ask both for their first move."""
        self.played = []
        self.turns = {player: [Turn("user", "Round 1?")] for player in PLAYERS}
        return self._shown()

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Play a round."""
        moves = {player: _move(actions[player]) for player in PLAYERS}
        self.played.append(moves)
        rewards = {}
        for player, other in (PLAYERS, PLAYERS[::-1]):
            rewards[player] = PAYOFFS[moves[player], moves[other]]
            outcome = f"The other player chose to {moves[other]}. You earn {rewards[player]:g}."
            self.turns[player] += [
                Turn("bot", actions[player]),
                Turn("user", f"{outcome} Round {len(self.played) + 1}?"),
            ]
        over = len(self.played) == self.rounds
        info = {f"{p}_cooperated": float(sum(m[p] == "cooperate" for m in self.played)) for p in PLAYERS}
        return StepResult({} if over else self._shown(), rewards, terminated=over, info=info)

    def _shown(self) -> dict[str, Observation]:
        return {player: Observation(Conversation(tuple(turns), RULES)) for player, turns in self.turns.items()}


def tit_for_tat(conversation: Conversation, rng: np.random.Generator) -> str:
    """Cooperates first, then repeats the other player's move: a script for a `ScriptedGenerator`."""
    return "defect" if "chose to defect" in conversation.turns[-1].text else "cooperate"


def _move(reply: str) -> str:
    words = set(re.findall("[a-z]+", reply.lower()))
    return "cooperate" if "cooperate" in words and "defect" not in words else "defect"
