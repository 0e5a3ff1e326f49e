"""The diversity of replies: a policy that scorers reward tends to repeat what they like best."""

from collections.abc import Sequence
from itertools import pairwise

OPENING_WORDS = 3


def diversity(replies: Sequence[str]) -> dict[str, float]:
    """Both measures by the names of PPO's metrics; none without replies."""
    if not replies:
        return {}
    return {"diversity/openings": distinct_openings(replies), "diversity/distinct_2": distinct_2(replies)}


def distinct_openings(replies: Sequence[str]) -> float:
    """Share of distinct openings (first three words) among replies: 1 where no two replies begin alike.

    Comparable only between equal numbers of replies. Raises ZeroDivisionError for no replies.
    """
    return len({tuple(reply.split()[:OPENING_WORDS]) for reply in replies}) / len(replies)


def distinct_2(replies: Sequence[str]) -> float:
    """Distinct pairs of neighbouring words over all pairs (Li et al. 2016, distinct-2); 0 without pairs.

    Comparable only between equal numbers of replies.
    """
    pairs = [pair for reply in replies for pair in pairwise(reply.split())]
    return len(set(pairs)) / max(1, len(pairs))
