"""Steps a CPU second of one game through each door beside the direct call: theirs in ours, and ours in theirs.

    .venv/bin/python benchmarks/environment_doors.py     # writes benchmarks/results/environment_doors.json

Needs `pip install 'lmgym[gym,pettingzoo]' pygame-ce`. The players say the same in every episode and read nothing, so a
step costs what the game and the door cost. Doors take turns within a repetition, on one thread; medians are compared.
"""

import argparse
import datetime
import importlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import gymnasium
import numpy as np
from shared import ROOT, describe_machine, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.apps.games.alternating import Alternating
from lmgym.apps.games.tic_tac_toe import TicTacToe
from lmgym.apps.interop.to_gymnasium import as_gymnasium
from lmgym.apps.interop.to_pettingzoo import as_pettingzoo
from lmgym.apps.interop.to_trl import ENDED, TRLEnvironment
from lmgym.environments.named import NamedEnvironment, load_environment
from lmgym.environments.session import Session

Door = Callable[[], Iterator[None]]
"""plays episodes without an end; yields after each step"""
BATCH = 50
HIT, STICK = "hit", "stick"
NOUGHTS = NamedEnvironment("tic-tac-toe", lambda: Alternating(TicTacToe()), trained_agents=2)


def gymnasium_direct() -> Iterator[None]:
    """Gymnasium's own Blackjack: hit once, then stick."""
    env, seed = gymnasium.make("Blackjack-v1", sab=False), 0
    while True:
        env.reset(seed=seed)
        seed, over, action = seed + 1, False, 1
        while not over:
            _, _, over, _, _ = env.step(action)
            action = 0
            yield


def _by_text(name: str, replies: tuple[str, str]) -> Door:
    """An environment of ours, reset and stepped with texts."""

    def door() -> Iterator[None]:
        environment, seed = load_environment(name).environment(), 0
        while True:
            environment.reset({}, seed)
            seed, over, (reply, then) = seed + 1, False, replies
            while not over:
                over = environment.step({"policy": reply}).terminated
                reply = then
                yield

    return door


def session() -> Iterator[None]:
    """Ours from the side of its agent, as other libraries see it."""
    with Session(load_environment("games:blackjack")) as played:
        seed = 0
        while True:
            played.reset({}, seed)
            seed, over, reply = seed + 1, False, HIT
            while not over:
                over, reply = played.reply(reply).ended, STICK
                yield


def ours_as_gymnasium() -> Iterator[None]:
    """Ours as a `gymnasium.Env`."""
    env, seed = as_gymnasium("games:blackjack"), 0
    while True:
        env.reset(seed=seed)
        seed, over, reply = seed + 1, False, HIT
        while not over:
            _, _, over, _, _ = env.step(reply)
            reply = STICK
            yield


class Blackjack(TRLEnvironment):
    """Ours for TRL's trainer."""

    ENVIRONMENT = "games:blackjack"


def ours_in_trl() -> Iterator[None]:
    """Ours as TRL's trainer calls it, by its tool."""
    environment, index = Blackjack(), 0
    while True:
        environment.reset("train", index)
        index, shown, reply = index + 1, "", HIT
        while shown != ENDED:
            shown, reply = environment.reply(reply), STICK
            yield


def pettingzoo_direct() -> Iterator[None]:
    """PettingZoo's own tic-tac-toe: the first free cell."""
    env = importlib.import_module("pettingzoo.classic.tictactoe_v3").env()
    while True:
        env.reset(seed=0)
        for _ in env.agent_iter():
            seen, _, terminated, truncated, _ = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            env.step(int(np.argmax(seen["action_mask"])))
            yield


def _two_by_text(named: NamedEnvironment) -> Door:
    """A game of two in ours: the first legal move."""

    def door() -> Iterator[None]:
        environment, seed = named.environment(), 0
        while True:
            seen = environment.reset({}, seed)
            while seen:
                result = environment.step({agent: one.actions[0] for agent, one in seen.items()})
                seen = result.observations
                yield

    return door


def ours_as_pettingzoo() -> Iterator[None]:
    """Ours as an `AECEnv`."""
    env = as_pettingzoo(NOUGHTS)
    while True:
        env.reset(seed=0)
        for _ in env.agent_iter():
            _, _, terminated, truncated, info = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            env.step(info["actions"][0])
            yield


# another library's door is one more line: its name, and a function as those above
DOORS: dict[str, dict[str, Door]] = {
    "blackjack": {
        "gymnasium, direct": gymnasium_direct,
        "gymnasium:Blackjack-v1": _by_text("gymnasium:Blackjack-v1?sab=False", ("1", "0")),
        "games:blackjack, direct": _by_text("games:blackjack", (HIT, STICK)),
        "games:blackjack, a session": session,
        "as_gymnasium": ours_as_gymnasium,
        "TRLEnvironment": ours_in_trl,
    },
    "tic-tac-toe": {
        "pettingzoo, direct": pettingzoo_direct,
        "pettingzoo:classic.tictactoe_v3": lambda: _two_by_text(load_environment("pettingzoo:classic.tictactoe_v3"))(),
        "ours, direct": _two_by_text(NOUGHTS),
        "as_pettingzoo": ours_as_pettingzoo,
    },
}


def steps_per_second(door: Door, seconds: float) -> float:
    """Steps a CPU second of this process, over at least `seconds`, after a first batch."""
    steps, taken = door(), 0
    next(islice(steps, BATCH, None))
    begin = time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        next(islice(steps, BATCH - 1, None))
        taken += BATCH
    steps.close()  # type: ignore[attr-defined]
    return taken / spent


def main() -> None:
    """Measures all doors, prints and writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/environment_doors.json")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, object] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
    }
    for game, doors in DOORS.items():
        speeds: dict[str, list[float]] = {name: [] for name in doors}
        for _ in range(arguments.repetitions):
            for name, door in doors.items():
                speeds[name].append(steps_per_second(door, arguments.seconds))
        medians = {name: statistics.median(runs) for name, runs in speeds.items()}
        found[game] = {
            name: {"steps_per_cpu_second": medians[name], "range": [min(runs), max(runs)]}
            for name, runs in speeds.items()
        }
        for name, speed in medians.items():
            print(f"{game:12} {name:32} {speed:10,.0f} steps/CPU s", flush=True)
    write_result(arguments.output, found)


if __name__ == "__main__":
    main()
