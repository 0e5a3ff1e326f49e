"""A negotiation of two and a judge, learned by PPO and GRPO against scripted rivals: all seeds, against the bars.

    .venv/bin/python benchmarks/negotiation.py        # adds what is missing to benchmarks/results/negotiation.json

The world, the rivals, the small policy that it begins from and the settings are those of
examples/environments/negotiation.py. The policy is one side, and the judge of what the sides do not settle, who is
asked in some games only. Bars, fixed after trials with seeds 100 to 102: a mean gain of the policy's side above 1.5 and
a share of lawful rulings above .95. By simulation (4,000 games, a lawful judge) a random side gains .37, and the best
script that we know 2.39. With exchanged rewards, each side learns from what the other one gains: it must stay below a
random side.
"""

import argparse
import datetime
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from shared import ROOT, describe_machine, metrics_of, seconds_of, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.environments.random_walks_model import made_once
from lmgym.runs.user_code import import_file
from ppo.train import train

WORLD = ROOT / "examples/environments/negotiation.py"
SEEDS, METHODS = (0, 1, 2), {"ppo": 1, "grpo": 8}
"""the methods, with the games of a group"""
GAIN, LAWFUL, RANDOM = 1.5, 0.95, 0.37


def exchanged(world: ModuleType) -> type:
    """The world's negotiation, in which each side is rewarded with what the other one gains."""

    class Exchanged(world.Negotiation):
        def step(self, actions):
            result = super().step(actions)
            first, second = (self.names[side] for side in world.SIDES)
            swapped = {first: second, second: first}
            return replace(result, rewards={swapped.get(agent, agent): x for agent, x in result.rewards.items()})

    return Exchanged


def learn(world: ModuleType, folder: Path, method: str, seed: int, swap: bool = False) -> dict[str, Any]:
    """A whole run, with what the policy earns in the evaluations before and after."""
    start, given = made_once(folder / "start", world.start), world.CONFIG
    output = folder / f"{method}_{seed}{'_exchanged' * swap}"
    config = replace(
        given,
        policy=replace(given.policy, model=str(start)),
        rollout=replace(given.rollout, num_generations=METHODS[method]),
        method=replace(given.method, method=method),
        optimizer=replace(given.optimizer, seed=seed),
        run=replace(given.run, output=str(output), tracking="none", eval_updates=9999, save_updates=-1),
    )
    environment = exchanged(world) if swap else world.Negotiation
    train(config, lambda *given: world.negotiations(*given, environment))
    lines = metrics_of(output)
    played = [line for line in lines if "eval/episode/gain" in line]
    gains = [line["eval/episode/gain"] for line in played]
    rulings = [line.get("eval/episode/ruling") for line in played]  # None: no game came before the judge
    lawful = [None if ruling is None else (1 + ruling) / 2 for ruling in rulings]
    absent = [line["rollout/absent_agents"] for line in lines if "rollout/absent_agents" in line]
    return {
        "method": method, "seed": seed, "exchanged": swap, "gain": [gains[0], gains[-1]],
        "lawful": [lawful[0], lawful[-1]], "absent_agents": [absent[0], absent[-1]], "updates": lines[-1]["step"],
        "cpu_seconds": seconds_of(output),
    }  # fmt: skip


def main() -> None:
    """Runs all seeds, prints and writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/negotiation.json")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    arguments = parser.parse_args()
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "bars": {"gain": GAIN, "lawful": LAWFUL, "exchanged": f"a gain below {RANDOM}"},
    }
    runs = json.loads(arguments.output.read_text())["runs"] if arguments.output.exists() else []
    known = {(run["method"], run["seed"], run["exchanged"]) for run in runs}
    wanted = [(method, seed, swap) for swap in (False, True) for method in METHODS for seed in arguments.seeds]
    with tempfile.TemporaryDirectory() as folder:
        world = import_file(WORLD, "needed: the example")
        for run in wanted:
            if run not in known:
                runs.append(learn(world, Path(folder), *run))
                print(runs[-1], flush=True)
                write_result(arguments.output, {**found, "runs": runs}, "method", "sampler")


if __name__ == "__main__":
    main()
