"""Random numbers per user."""

import numpy as np
import pytest
from scipy import stats

from lmgym.apps.world.streams import BLOCK, DRAWS, draw_population
from lmgym.apps.world.world import World

WORLD = World(0)


def test_a_user_and_their_random_numbers_do_not_depend_on_other_users() -> None:
    all_users = draw_population(WORLD, np.arange(2 * BLOCK + 7), 3)
    some = np.array([5, BLOCK - 1, BLOCK, 2 * BLOCK + 6])
    few = draw_population(WORLD, some, 3)
    assert (few.users.tastes == all_users.users.tastes[some]).all()
    assert (few.users.habit == all_users.users.habit[some]).all()
    assert (few.streams == all_users.streams[:, some]).all()
    day = np.array([0, 1, 2, 3])
    theirs = all_users.moments("reaction", some, day, day + 1, day).random(4)
    assert (few.moments("reaction", np.arange(4), day, day + 1, day).random(4) == theirs).all()
    assert few.words(1, 4, 2).random() == all_users.words(BLOCK - 1, 4, 2).random()


def test_every_seed_world_user_purpose_moment_and_draw_has_its_own_number() -> None:
    who = np.arange(40)
    seen = []
    for world, seed in ((0, 0), (0, 1), (1, 0)):
        population = draw_population(World(world), who, seed)
        for purpose in ("reaction", "return", "policy"):
            for day, message, attempt in ((0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0)):
                ones = np.ones(40, dtype=np.int64)
                moments = population.moments(purpose, who, day * ones, message * ones, attempt * ones)
                seen += [moments.random(40) for _ in range(3)]
    assert len(np.unique(np.concatenate(seen))) == 40 * len(seen)


def test_another_seed_of_a_policy_is_other_luck_and_the_same_seed_the_same() -> None:
    population, who = draw_population(WORLD, np.arange(9), 0), np.arange(9)
    first, again, other = (population.moments("policy", who, who, 1, 0, seed).random(9) for seed in (4, 4, 5))
    assert (first == again).all()
    assert not np.intersect1d(first, other).size


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda moments, n: moments.random(n), stats.uniform()),
        (lambda moments, n: moments.standard_normal(n), stats.norm()),
        (lambda moments, n: moments.uniform(4, 7, n), stats.uniform(4, 3)),
    ],
)
def test_random_numbers_have_the_stated_distributions(draw, distribution) -> None:
    who = np.arange(5000)
    population = draw_population(WORLD, who, 11)
    values = [draw(population.moments("reaction", who, who * 0 + day), 5000) for day in range(4)]
    assert stats.kstest(np.concatenate(values), distribution.cdf).pvalue > 0.001
    assert abs(np.corrcoef(values)[np.triu_indices(4, 1)]).max() < 0.06  # days, and so users, are independent


def test_a_moment_does_not_run_into_the_next_one() -> None:
    population, who = draw_population(WORLD, np.arange(3), 0), np.arange(3)
    moments = population.moments("reaction", who, who)
    for _ in range(DRAWS):
        moments.random(3)
    with pytest.raises(AssertionError, match="no more numbers"):
        moments.random(3)
