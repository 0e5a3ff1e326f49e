"""Scores of an ensemble's members as one score, and what the members tell of each other's errors.

Members are K scorers, or K heads on one trunk (lmgym/scoring/ensembles.py, reward_models/heads.py).
"""

import re
from collections.abc import Sequence
from typing import Protocol

import torch

from lmgym.errors import InputError, shown
from lmgym.text import Conversation

COMBINATION = re.compile(r"mean|min|mean-(\d+(?:\.\d+)?|\.\d+)?std")
NEEDED = "mean, min, mean-std or mean-2std, with any number"


class MemberScorer(Protocol):
    """A scorer that is made of several, and tells what each of them says."""

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [replies], the members' scores combined."""

    def score_members(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> torch.Tensor:
        """float32 [members, replies]."""


def is_combination(words: str) -> bool:
    """True for `mean`, `min`, and `mean-std` or `mean-2std` with any number."""
    return bool(COMBINATION.fullmatch(words))


def combine(members: torch.Tensor, how: str) -> torch.Tensor:
    """Scores [n] of members' scores [K, n]: their mean, minimum, or mean less so many standard deviations over them.

    The deviation is the population's. The minimum and the lower bound resist over-optimisation (Coste et al. 2023).
    Raises InputError for other words.
    """
    if not (match := COMBINATION.fullmatch(how)):
        raise InputError(f"{shown(how)} combines no scores; needed: {NEEDED}")
    if how == "min":
        return members.min(0).values
    mean = members.mean(0)
    return mean if how == "mean" else mean - float(match[1] or 1) * spread(members)


def spread(members: torch.Tensor) -> torch.Tensor:
    """Standard deviations [n] over members of scores [K, n], of the population."""
    return members.std(0, correction=0)


def error_correlation(errors: torch.Tensor) -> float | None:
    """Mean of Pearson's correlations of two members' errors [K, n], over all pairs of members.

    Near 1 the members err together, and their spread says little of their error. None for fewer than 2 members or 3
    replies, and where a member's errors are all equal.
    """
    members, replies = errors.shape
    if members < 2 or replies < 3 or bool((errors == errors[:, :1]).all(1).any()):
        return None
    found = torch.corrcoef(errors.double())
    above = torch.triu_indices(members, members, 1)
    return float(found[above[0], above[1]].mean())
