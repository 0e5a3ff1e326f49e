"""Tic-tac-toe, for two players, without dependencies."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
MARKS = "XO"


@final
@dataclass(frozen=True)
class TicTacToe:
    """The rules: X moves first. A state is nine characters: X, O, or a space; a move the number of a cell, 1 to 9."""

    about: str = "Tic-tac-toe: say the number of a free cell."

    def start(self) -> str:
        """An empty board."""
        return " " * 9

    def moves(self, state: str) -> Mapping[str, str]:
        """The free cells."""
        mark = MARKS[(9 - state.count(" ")) % 2]
        return {str(i + 1): state[:i] + mark + state[i + 1 :] for i, cell in enumerate(state) if cell == " "}

    def result(self, state: str) -> float | None:
        """1 for three in a line, 0 for a full board."""
        if any(state[a] == state[b] == state[c] != " " for a, b, c in LINES):
            return 1.0
        return None if " " in state else 0.0

    def show(self, state: str, side: int) -> str:
        """Three rows in which free cells have their numbers."""
        cells = [str(i + 1) if cell == " " else cell for i, cell in enumerate(state)]
        rows = "\n".join(" ".join(cells[i : i + 3]) for i in (0, 3, 6))
        return f"You are {MARKS[side]}.\n{rows}"

    def read(self, text: str) -> str:
        """The board below the first line."""
        return "".join(cell if cell in MARKS else " " for cell in text.partition("\n")[2].split())

    def move(self, reply: str) -> str:
        """The only number of a reply."""
        numbers = re.findall(r"\d+", reply)
        return numbers[0] if len(numbers) == 1 else ""
