"""Nim, for two players, without dependencies (Bouton 1901)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

SIDE_NAMES = ("first", "second")
Piles = tuple[int, ...]


@final
@dataclass(frozen=True)
class Nim:
    """The rules: who takes the last object wins. A move is the number of a pile, from 1, and how many to take."""

    piles: Piles = (3, 4, 5)
    about: str = "Nim: say a pile and how many to take; the last one wins."

    def start(self) -> Piles:
        """All piles whole."""
        return self.piles

    def moves(self, state: Piles) -> Mapping[str, Piles]:
        """One or more of any pile."""
        return {
            f"{i + 1} {taken}": (*state[:i], size - taken, *state[i + 1 :])
            for i, size in enumerate(state)
            for taken in range(1, size + 1)
        }

    def result(self, state: Piles) -> float | None:
        """1 once nothing is left."""
        return None if any(state) else 1.0

    def show(self, state: Piles, side: int) -> str:
        """The sizes of the piles, and who is to move."""
        return f"You are the {SIDE_NAMES[side]}. Piles: {' '.join(map(str, state))}"

    def read(self, text: str) -> Piles:
        """The sizes after the colon."""
        return tuple(map(int, text.partition(":")[2].split()))

    def move(self, reply: str) -> str:
        """The only two numbers of a reply."""
        numbers = re.findall(r"\d+", reply)
        return " ".join(numbers) if len(numbers) == 2 else ""
