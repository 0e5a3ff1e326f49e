"""Scripted players of textarena's TicTacToe, Nim and Mastermind, from the text of an observation."""

import re
from functools import cache, lru_cache

import numpy as np

from lmgym.apps.games.text_arena import guesses, piles
from lmgym.environments.protocol import Environment, Observation

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


def text_of(seen: Observation) -> str:
    """The text of an observation's last turn."""
    return seen.conversation.turns[-1].text


def board(text: str) -> str:
    """TicTacToe's nine cells: O, X, or a space."""
    drawn = text.rpartition("Current Board:")[2].partition("Available Moves")[0]
    cells = re.findall(r"[0-8OX]", drawn)
    return "".join(cell if cell in "OX" else " " for cell in cells)


def center_first(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """TicTacToe: a move that wins, else one that blocks, else the centre, else a random one."""
    cells, own = board(text_of(seen)), _side(text_of(seen))
    free = [i for i, cell in enumerate(cells) if cell == " "]
    for side in (own, "OX"[own == "O"]):
        for i in free:
            if _won(_put(cells, i, side), side):
                return f"[{i}]"
    return f"[{4 if 4 in free else free[rng.integers(len(free))]}]"


def minimax(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """TicTacToe: a random one of the moves that are best against a perfect opponent and, of those, win most often
    against a random one."""
    cells, own = board(text_of(seen)), _side(text_of(seen))
    values = {i: _worth(_put(cells, i, own), own) for i, cell in enumerate(cells) if cell == " "}
    best = [i for i, value in values.items() if value == max(values.values())]
    return f"[{best[rng.integers(len(best))]}]"


def _side(text: str) -> str:
    return "O" if "You are Player 0" in text else "X"


def _put(cells: str, i: int, side: str) -> str:
    return cells[:i] + side + cells[i + 1 :]


def _won(cells: str, side: str) -> bool:
    return any(all(cells[i] == side for i in line) for line in LINES)


@cache
def _worth(cells: str, own: str) -> tuple[int, float]:
    """(value against a perfect opponent, value against a random one) for `own`, who has just moved."""
    if _won(cells, own):
        return 1, 1.0
    if " " not in cells:
        return 0, 0.0
    other = "OX"[own == "O"]
    perfect, average = [], []
    for i in (i for i, cell in enumerate(cells) if cell == " "):
        after = _put(cells, i, other)
        if _won(after, other) or " " not in after:
            worth = (-1, -1.0) if _won(after, other) else (0, 0.0)
        else:
            worth = max(_worth(_put(after, j, own), own) for j, cell in enumerate(after) if cell == " ")
        perfect.append(worth[0])
        average.append(worth[1])
    return min(perfect), sum(average) / len(average)


def largest_pile(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """Nim: the whole of the largest pile."""
    sizes = piles(text_of(seen))
    return f"[{sizes.index(max(sizes))} {max(sizes)}]"


def nim_sum(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """Nim: leave a nim-sum of 0 (Bouton 1901); one object where that cannot be."""
    sizes = piles(text_of(seen))
    total = int(np.bitwise_xor.reduce(sizes))
    for i, size in enumerate(sizes):
        if size ^ total < size:
            return f"[{i} {size - (size ^ total)}]"
    return f"[{sizes.index(max(sizes))} 1]"


def consistent_guess(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """Mastermind: a random one of the codes that agree with all answers so far."""
    left = consistent_codes(text_of(seen))
    return left[rng.integers(len(left))]


def consistent_codes(text: str) -> list[str]:
    """The codes that agree with all answers so far."""
    answers = re.findall(r"Submitted \[([\d ]+)\]\. Feedback: (\d) black peg\(s\), (\d) white", text)
    known = [(_digits(code), int(black), int(white)) for code, black, white in answers]
    return [
        code
        for code in guesses(text)
        if all(pegs(guess, _digits(code)) == (black, white) for guess, black, white in known)
    ]


def most_even_guess(game: Environment, seen: Observation, rng: np.random.Generator) -> str:
    """Mastermind: the consistent code whose largest group of answers is the smallest (Knuth 1977, among these)."""
    left = consistent_codes(text_of(seen))
    return _most_even(tuple(left))


@lru_cache(maxsize=4096)
def _most_even(codes: tuple[str, ...]) -> str:
    digits = [_digits(code) for code in codes]

    def largest(guess: tuple[int, ...]) -> int:
        answers = [pegs(guess, code) for code in digits]
        return max(map(answers.count, set(answers)))

    return codes[min(range(len(codes)), key=lambda i: largest(digits[i]))] if len(codes) < 200 else codes[0]


def pegs(guess: tuple[int, ...], code: tuple[int, ...]) -> tuple[int, int]:
    """(black, white) pegs of a guess; digits do not repeat."""
    black = sum(a == b for a, b in zip(guess, code, strict=True))
    return black, len(set(guess) & set(code)) - black


def _digits(code: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", code)))
