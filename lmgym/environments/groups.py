"""Groups of episodes: which tasks and seeds a rank plays, and how far the rewards of a group differ.

Design decisions:
- A group is the replies of one agent to one task with one seed: the environment begins in the same way for all of them.
- Episode n of an iteration's N is of group n modulo the number of groups. So a rank holds its groups whole where ranks
  divide their number, and prompts are read once; where not, a group is split, and its rewards are gathered.
- Tasks and seeds are functions of (seed, iteration, group), never of the rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lmgym.distributed.ranks import all_gather_objects, rank, world_size
from lmgym.environments.episodes import Episode
from lmgym.environments.protocol import Task
from lmgym.scoring.moments import group_moments


@dataclass
class Share:
    """This rank's part of an iteration: one entry an episode."""

    tasks: list[Any]
    seeds: list[int]
    groups: list[int]
    members: list[int]
    """numbers within the groups"""

    def only(self, places: Sequence[int]) -> "Share":
        """The entries at these places."""
        return Share(*([column[i] for i in places] for column in (self.tasks, self.seeds, self.groups, self.members)))


def share_of_rank(
    tasks: Sequence[Task], episodes: int, members: int, iteration: int, seed: int, refill: int = 0, together: int = 1
) -> Share:
    """This rank's part of an iteration's `episodes`, in groups of `members`; so many tasks in a row stay together.

    With `refill`, from 1, the tasks are others, drawn at random, to take the place of some of the iteration's own.
    """
    groups = episodes // members
    if refill:
        chance = np.random.default_rng([seed, iteration, refill])
        chosen = np.resize(chance.permutation(len(tasks)), groups).tolist()
    else:
        chance = np.random.default_rng([seed, iteration])
        chosen = tasks_of_iteration(tasks, groups, iteration, seed, together)
    seeds = chance.integers(2**62, size=groups).tolist()
    own = range(rank(), episodes, world_size())
    of_episode = [n % groups for n in own]
    return Share(
        tasks=[tasks[chosen[group]] for group in of_episode],
        seeds=[seeds[group] for group in of_episode],
        groups=of_episode,
        members=[n // groups for n in own],
    )


def tasks_of_iteration(tasks: Sequence[Task], number: int, iteration: int, seed: int, together: int = 1) -> list[int]:
    """Indices of an iteration's tasks: the next `number` of an endless series of random permutations.

    Of runs of `together` tasks, which divides the number of all; each stays in a row.
    """
    places = np.arange(iteration * number, (iteration + 1) * number)
    epochs, within = np.divmod(places, len(tasks))
    units = len(tasks) // together
    orders = {int(e): np.random.default_rng([seed, int(e)]).permutation(units) for e in np.unique(epochs)}
    return [
        int(orders[int(e)][i // together]) * together + int(i) % together for e, i in zip(epochs, within, strict=True)
    ]


def groups_of_equal_rewards(episodes: Sequence[Episode], groups: Sequence[int]) -> set[int]:
    """Groups of tasks in which no agent has two different rewards, on all ranks; `groups` are by task."""
    rewards: dict[tuple[int, str], set[float]] = {}
    for of_rank in all_gather_objects([(groups[e.index], e.agent, e.total_reward) for e in episodes]):
        for group, agent, reward in of_rank:
            rewards.setdefault((group, agent), set()).update([] if reward is None else [reward])
    return {group for group, _ in rewards} - {group for (group, _), found in rewards.items() if len(found) > 1}


def number_groups(episodes: Sequence[Episode], groups: Sequence[int]) -> np.ndarray:
    """[E]: a number for each agent and group of tasks, the same on all ranks; `groups` are by task. Collective."""
    agents = sorted(set().union(*all_gather_objects({episode.agent for episode in episodes})))
    numbers = [groups[e.index] * len(agents) + agents.index(e.agent) for e in episodes]
    return np.array(numbers, dtype=np.int64)


def reward_spread(episodes: Sequence[Episode], groups: np.ndarray) -> dict[str, float]:
    """The mean standard deviation of rewards within groups [E], and the share of groups whose rewards are all equal.

    Of all ranks; failed rewards are left out. Collective.
    """
    own = [np.nan if (reward := episode.total_reward) is None else reward for episode in episodes]
    gathered = all_gather_objects((groups, np.array(own, dtype=np.float64)))
    numbers, rewards = (np.concatenate(parts) for parts in zip(*gathered, strict=True))
    known = ~np.isnan(rewards)
    if not known.any():
        return {}
    rewards = rewards[known]
    _, first, member = np.unique(numbers[known], return_index=True, return_inverse=True)
    std = group_moments(torch.from_numpy(rewards), torch.from_numpy(member))[2][first]
    # compared, because the mean of equal numbers may be another one
    different = np.bincount(member, rewards != rewards[first][member])
    return {"groups/reward_std": std.mean().item(), "groups/equal_rewards": float((different == 0).mean())}
