"""The app's A/B tests: false alarms for equal policies, and the power to find changes of 5%.

    .venv/bin/python benchmarks/app_tests.py      # writes benchmarks/results/app_tests.json; about 8 minutes of CPU

Policies that do not differ: 200 experiments, each with a seed of its own, of the world's bots with themselves, in
words. Changes of 5% are planted with wordless policies (`lmgym/apps/world/days.py`: the same users and the same code,
but each reply's worth is drawn from a normal distribution), since words take a hundred times as long: for each figure,
replies are made worth more until it changes by 5%; a pilot of 2,000 users says how many users find that; 80 experiments
of so many users, each with a seed of its own, say how often they do.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from shared import ROOT, describe_machine, write_result
from tables import table

from lmgym.apps.world.ab_testing import RETENTION_DAYS, figures
from lmgym.apps.world.app import deploy
from lmgym.apps.world.days import Moment, simulate_users
from lmgym.apps.world.embedded_world import bot_reply
from lmgym.apps.world.streams import Population, draw_population
from lmgym.apps.world.users import Floats, Reaction
from lmgym.apps.world.world import World
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.sample_sizes import units_needed
from lmgym.statistics import Ratio, compare

WORLD = World(0)
DAYS, CHANGE, PILOT, CALIBRATION = 31, 0.05, 2000, 60_000
LEVELS = range(5)  # of retention
# a figure is settled once its last day is over: no need to simulate on
HORIZON = {"conversation length": DAYS, "retry rate": DAYS} | {f"retention day {d}": d + 1 for d in RETENTION_DAYS}


@dataclass(frozen=True)
class GaussianReplies:
    """A ConversationDriver without texts: normally distributed utilities, for tests of statistics."""

    population: Population
    mean: float = 0.0
    spread: float = 1.0
    seed: int = 0

    def open(self, at: Moment) -> None:
        """No text to make."""

    def answer(self, at: Moment) -> Floats:
        """Utilities[n], drawn from the policy's random numbers."""
        chance = self.population.moments("policy", at.who, at.day, at.message, at.attempt, self.seed)
        return self.mean + self.spread * chance.standard_normal(len(at.who))

    def record(self, at: Moment, utilities: Floats, reaction: Reaction) -> None:
        """Nothing to record."""

    def advance(self, at: Moment) -> None:
        """No text to make."""


def with_bots(users: np.ndarray, seed: int, noise: int) -> dict[str, Ratio]:
    """Figures of the world's bots, in words."""
    bots = ScriptedGenerator(lambda conversation, rng: bot_reply(WORLD, conversation, rng))
    return figures(deploy(bots, users, DAYS, seed, WORLD, Sampling(seed=noise)).activity)


def without_words(users: np.ndarray, seed: int, noise: int, worth: float = 0.0, days: int = DAYS) -> dict[str, Ratio]:
    """Figures of replies whose worth is normal."""
    population = draw_population(WORLD, users, seed)
    return figures(simulate_users(population, days, GaussianReplies(population, worth, 1.0, noise), WORLD.noise))


def false_alarms(experiments: int, users: int) -> dict:
    """Share of experiments with p < .05 by figure, dealt at random and paired."""
    p_values: dict[str, dict[str, list[float]]] = {"random": {}, "paired": {}}
    for seed in range(experiments):
        same, others = np.arange(users), np.arange(users, 2 * users)
        first, second, again = with_bots(same, seed, 0), with_bots(others, seed, 1), with_bots(same, seed, 1)
        for name in first:
            p_values["random"].setdefault(name, []).append(compare(first[name], second[name]).p_value)
            p_values["paired"].setdefault(name, []).append(compare(first[name], again[name], paired=True).p_value)
    shares = {
        design: {name: float(np.mean(np.array(values) < 0.05)) for name, values in found.items()}
        for design, found in p_values.items()
    }
    return {"experiments": experiments, "users_a_policy": users, "rejected_at_.05": shares}


def plant(name: str) -> tuple[float, float]:
    """The rise in reply utility that changes a figure by 5%, and the change that many users then show."""
    goal = -CHANGE if name == "retry rate" else CHANGE
    users, worth = np.arange(CALIBRATION), 0.1
    base = without_words(users, 10**6, 0, days=HORIZON[name])[name].value
    for _ in range(3):
        change = without_words(users, 10**6, 1, worth, HORIZON[name])[name].value / base - 1
        if abs(change / goal - 1) < 0.02:
            break
        worth *= goal / change
    return worth, change


def power(name: str, paired: bool, worth: float, experiments: int) -> dict:
    """Share of experiments that find a change of 5% with the number of users that a pilot suggests."""
    days, users = HORIZON[name], np.arange(PILOT)
    a, b = (without_words(users, 10**6 + 1, noise, noise * worth, days)[name] for noise in (0, 1))
    needed = units_needed(CHANGE * a.value, compare(a, b, paired).spread)
    found = 0
    for seed in range(experiments):
        same = np.arange(needed)
        first = without_words(same, seed, 0, 0.0, days)[name]
        second = without_words(same if paired else same + needed, seed, 1, worth, days)[name]
        found += compare(first, second, paired).p_value < 0.05
    return {"users_a_policy": needed, "found": found / experiments}


def retention(level: float, users: int) -> list[float]:
    """Retention on RETENTION_DAYS for replies of utility 0 on average, at a level of retention."""
    world, who = World.with_retention(WORLD.seed, level), np.arange(users)
    population = draw_population(world, who, 0)
    found = figures(simulate_users(population, DAYS, GaussianReplies(population), world.noise))
    return [found[f"retention day {day}"].value for day in RETENTION_DAYS]


def retention_table(users: int = 20_000) -> list[str]:
    """The table of docs/app.md: retention by its level; 7 seconds."""
    rows = []
    for level in LEVELS:
        shares = [f"{share:.2f}".removeprefix("0") for share in retention(level, users)]
        rows.append((f"{level} (default)" if level == WORLD.noise.retention else level, *shares))
    return table(("`--retention`", *(f"day {day}" for day in RETENTION_DAYS)), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=200, help="of policies that do not differ")
    parser.add_argument("--users", type=int, default=30, help="with each of them")
    parser.add_argument("--planted", type=int, default=80, help="experiments of each planted change; 0: none")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/app_tests.json")
    arguments = parser.parse_args()
    record = {"machine": describe_machine(), "world": WORLD.seed, "days": DAYS}
    began = time.process_time()
    record["do_not_differ"] = false_alarms(arguments.experiments, arguments.users)
    record["do_not_differ"]["cpu_seconds"] = time.process_time() - began
    print(json.dumps(record["do_not_differ"], indent=1), flush=True)
    if arguments.planted:
        began = time.process_time()
        record["planted"] = {"experiments": arguments.planted, "pilot_users": PILOT, "change": CHANGE, "figures": {}}
        for name in HORIZON:
            worth, change = plant(name)
            row = {"worth": worth, "change_planted": change}
            for paired in (False, True):
                row["paired" if paired else "random"] = power(name, paired, worth, arguments.planted)
            record["planted"]["figures"][name] = row
            print(name, json.dumps(row), flush=True)
        record["planted"]["cpu_seconds"] = time.process_time() - began
    write_result(arguments.output, record, "world", "intervals")


if __name__ == "__main__":
    main()
