"""Random numbers per user: each is a function of (world, seed, user, purpose, moment) alone.

Design decisions:
- A user's numbers do not depend on other users, on the order of requests or on the policy's replies. So the same user
  under two policies has the same tastes, and the same luck at the same moment: a paired comparison differs only by the
  policies (common random numbers).
- A moment is a day, a message of that day and an attempt at answering it: conversations that diverged under two
  policies are paired again on the next day.
- A policy's sampling is one more purpose, and differs between policies by their sampling seed.
"""

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from lmgym.apps.world.users import Floats, Users, join
from lmgym.apps.world.world import World
from lmgym.generation.token_sampling import uniforms

Ints = NDArray[np.int64]
PURPOSES = ("reaction", "return", "words", "policy")
BLOCK = 1000  # users drawn together: the others drawn with a user are always the same
MESSAGES, TRIES, DRAWS = 32, 256, 16  # at most, per day, message and moment


@dataclass(frozen=True)
class Moments:
    """Random numbers of users at a moment each, with the methods of a numpy Generator."""

    seeds: NDArray[np.uint64]
    places: Ints
    drawn: list[int]

    def random(self, size: int, /) -> Floats:
        """[size] uniform in [0, 1)."""
        assert size == len(self.places)
        assert len(self.drawn) < DRAWS, "a moment has no more numbers: the next ones belong to the next moment"
        self.drawn.append(size)
        return uniforms(self.seeds, self.places * DRAWS + len(self.drawn) - 1)

    def standard_normal(self, size: int, /) -> Floats:
        """[size] of mean 0 and variance 1, by the inverse of the cumulative distribution."""
        return ndtri(np.maximum(self.random(size), 2.0**-54))

    def uniform(self, low: float, high: float, size: int, /) -> Floats:
        """[size] uniform in [low, high)."""
        return low + (high - low) * self.random(size)


@dataclass(frozen=True)
class Population:
    """Users by number, and a stream of random numbers for each user and purpose."""

    numbers: Ints
    users: Users
    streams: NDArray[np.uint64]
    """[purposes, users]"""

    def moments(
        self, purpose: str, who: Ints, day: Ints, message: Ints | int = 0, attempt: Ints | int = 0, seed: int = 0
    ) -> Moments:
        """Random numbers of users (by place in the population) at their moments; each `seed` has others."""
        places = (day * MESSAGES + message) * TRIES + attempt
        seeds = self.streams[PURPOSES.index(purpose), who]
        if seed:
            seeds = seeds ^ np.random.SeedSequence([seed & (2**63 - 1)]).generate_state(1, np.uint64)
        return Moments(seeds, np.broadcast_to(places, who.shape), [])

    def words(self, user: int, day: int, message: int) -> random.Random:
        """Random numbers for a user's message."""
        return random.Random((int(self.streams[PURPOSES.index("words"), user]) << 40) | (day * MESSAGES + message))


def draw_population(world: World, numbers: Ints, seed: int) -> Population:
    """The users with these numbers: user 5 is the same person in every population of the seed."""
    users, streams = [], []
    for block in np.unique(numbers // BLOCK).tolist():
        rows = numbers[numbers // BLOCK == block] - block * BLOCK
        source = np.random.SeedSequence([world.seed & (2**63 - 1), seed & (2**63 - 1), block])
        tastes, chance = source.spawn(2)
        users.append(world.draw_users(np.random.default_rng(tastes), BLOCK).take(rows))
        words = chance.generate_state(BLOCK * len(PURPOSES), np.uint64)
        streams.append(words.reshape(len(PURPOSES), BLOCK)[:, rows])
    return Population(np.sort(numbers), join(users), np.concatenate(streams, axis=1))
