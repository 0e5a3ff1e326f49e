"""An app team's figures of users' behaviour, and the assignment of users to policies.

Design decisions:
- Users are assigned, and are the units of all intervals and tests: conversations of one user are not independent.
- Every figure is a ratio of sums over users (messages over conversations, retries over replies, users back over all),
  so one method serves all: the jackknife, in which a user's share in the ratio's deviation is what its absence changes
  (Miller 1974). The delta method for ratios is its limit for many users; with 30 of them it found differences between
  equal policies in up to 8% of experiments instead of 5%, since few loyal users have most conversations.
- Each figure has its own two-sided test at 5%: with seven figures, one of two equal policies often looks different.
"""

import numpy as np
from numpy.typing import NDArray

from lmgym.apps.world.days import UserActivity
from lmgym.errors import InputError
from lmgym.statistics import Ratio

RETENTION_DAYS = (1, 3, 7, 30)


def figures(activity: UserActivity) -> dict[str, Ratio]:
    """Mean conversation length in user messages, retry rate of replies seen, and retention on simulated days."""
    messages = activity.messages
    ones = np.ones(len(messages))
    ratios = {
        "conversation length": Ratio(messages.sum(1).astype(np.float64), (messages > 0).sum(1).astype(np.float64)),
        "retry rate": Ratio(activity.retries.astype(np.float64), activity.replies.astype(np.float64), (0, 1)),
    }
    for day in RETENTION_DAYS:
        if day < messages.shape[1]:
            ratios[f"retention day {day}"] = Ratio((messages[:, day] > 0).astype(np.float64), ones, (0, 1))
    return ratios


def assign_users(users: int, policies: int, seed: int) -> list[NDArray[np.int64]]:
    """The user numbers of each policy: all users, assigned at random and as evenly as possible.

    Raises InputError for fewer than 2 users per policy.
    """
    if users < 2 * policies:
        raise InputError(
            f"{users} users for {policies} policies; needed: 2 or more with each, so {2 * policies} in all"
        )
    shuffled = np.random.default_rng([seed & (2**63 - 1), 1]).permutation(users)
    return [np.sort(shuffled[first::policies]) for first in range(policies)]
