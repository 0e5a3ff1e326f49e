"""Retention of users: it falls over the days, at a level that can be chosen, and good replies raise it."""

import json
import re
from pathlib import Path

import app_tests
import numpy as np
import pages
import pytest
from app_tests import GaussianReplies

from lmgym.apps.world.ab import Design
from lmgym.apps.world.ab_testing import figures
from lmgym.apps.world.app import deploy
from lmgym.apps.world.days import simulate_users
from lmgym.apps.world.embedded_world import bot_reply
from lmgym.apps.world.streams import draw_population
from lmgym.apps.world.users import NOISE, stays
from lmgym.apps.world.world import DAYS, World, simulate
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.generation.protocol import ScriptedGenerator

PAGE = pages.ROOT / "docs/app.md"
RETURNS = ("retention day 1", "retention day 7", "retention day 30")


def retention(level: float = NOISE.retention, utility: float = 0.0, users: int = 3000) -> list[float]:
    """Retention on days 1, 7 and 30 for replies of normally distributed utility."""
    world = World.with_retention(0, level)
    population = draw_population(world, np.arange(users), 0)
    found = figures(simulate_users(population, 31, GaussianReplies(population, utility), world.noise))
    return [found[name].value for name in RETURNS]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_retention_of_the_worlds_bots_falls_from_day_1_through_day_7_to_day_30(seed: int) -> None:
    world = World(seed)
    bots = ScriptedGenerator(lambda conversation, rng: bot_reply(world, conversation, rng))
    found = figures(deploy(bots, 300, 31, 0, world).activity)
    day_1, day_7, day_30 = (found[name].value for name in RETURNS)
    assert 0.5 > day_1 > day_7 + 0.08
    assert day_7 > day_30 + 0.04 > 0.06


def test_the_default_level_is_the_frozen_one() -> None:
    assert retention(users=20_000) == pytest.approx([0.41, 0.20, 0.08], abs=0.01)


def test_the_pages_table_is_what_the_world_gives_at_each_level() -> None:
    [table] = [found[5] for found in pages.TABLE.finditer(PAGE.read_text()) if found[3] == "retention_table"]
    lines = table.strip().splitlines()[2:]
    assert len(lines) == len(app_tests.LEVELS)
    for level, line in zip(app_tests.LEVELS, lines, strict=True):
        shares = [float(cell) for cell in re.findall(r"(?<= )\.\d\d", line)]
        assert line.startswith(f"| {level}")
        assert ("default" in line) == (level == NOISE.retention)
        assert shares == pytest.approx(app_tests.retention(level, 2000), abs=0.03)


def test_a_higher_level_keeps_users_longer() -> None:
    low, middle, high = (np.array(retention(level)) for level in (1.0, 2.0, 3.0))
    assert (low < middle).all()
    assert (middle < high).all()


def test_better_replies_raise_retention_on_every_day() -> None:
    assert (np.array(retention(utility=0.5)) > 1.1 * np.array(retention())).all()


def test_who_stays_with_a_worse_policy_stays_with_a_better_one_by_the_same_luck() -> None:
    population = draw_population(World(0), np.arange(2000), 0)
    day = np.full(2000, 3)
    worse, better = (
        stays(population.moments("return", np.arange(2000), day), population.users, np.full(2000, satisfaction))
        for satisfaction in (0.0, 1.0)
    )
    assert not (worse & ~better).any()
    assert better.sum() > worse.sum()


def test_users_of_the_logged_world_leave_it_too() -> None:
    cohort = simulate(World(0), 400, 1)
    since_start = (cohort.messages[~cohort.users.is_new] > 0).mean(0)
    assert since_start[0] == 1 > since_start[1] > since_start[7] + 0.05 > since_start[DAYS + 10] + 0.1


def test_the_commands_have_the_default_level_and_the_files_say_which_it_was(tmp_path: Path) -> None:
    for name in ("world", "ab", "deploy"):
        [option] = [option for option in main.commands[name].params if option.name == "retention"]
        assert option.default == NOISE.retention == Design().retention
    words = ["world", "--rows", "1000", "--retention", "1", "--output", str(tmp_path)]
    main(words, standalone_mode=False)
    assert json.loads((tmp_path / "world.json").read_text())["noise"]["retention"] == 1
    with pytest.raises(InputError, match="retention"):
        Design(retention=float("nan")).check(0)
