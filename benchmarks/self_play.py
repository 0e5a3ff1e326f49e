"""Tic-tac-toe by self-play alone, and against the random player: all seeds, against the bars.

    .venv/bin/python benchmarks/self_play.py        # writes benchmarks/results/self_play.json

The experiment as it is (`lmgym/apps/games/experiments/self_play.py`), launched as a user launches it, on one rank and
thread; with `--opponents random` for the second bar. Final policies play 2,000 games against the random player on
either side at temperature 1. Bars: moving first against random, trained against random, a mean return above 0.9; by
self-play alone, at most 5% lost. The start, which only copies random legal moves, is played too: it must miss both.
"""

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

import numpy as np
from shared import ROOT, describe_machine, launch, metrics_of, seconds_of, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.apps.games.self_play.two_players import find_two_player_game, make_start
from lmgym.environments.one_side import OPPONENT, OneSide, both_sides
from lmgym.environments.rollout_engine import run_episodes
from lmgym.generation.actions import ActionPolicy
from lmgym.generation.local_generation import load_causal
from lmgym.generation.protocol import Sampling, ScriptedGenerator

SEEDS, GAMES, TOGETHER = (0, 1, 2), 2000, 250
FIRST_RETURN, MOST_LOST = 0.9, 0.05
OPPONENTS = {"self": (), "random": ("--opponents", "random")}


def against_random(folder: Path, games: int = GAMES) -> dict[str, float]:
    """Mean return and share of lost games of a policy over the listed moves, moving first and second."""
    game, policy = find_two_player_game("tic_tac_toe"), load_causal(str(folder))
    chance, sampling = {OPPONENT: ScriptedGenerator(game.script("random"))}, Sampling(game.max_new_tokens)
    played = []
    for first in range(0, 2 * games, TOGETHER):
        seeds = range(first, first + TOGETHER)
        environments = [OneSide(game.make(), game.sides) for _ in seeds]
        tasks = both_sides(game.sides, TOGETHER)
        acting = ActionPolicy(policy), policy.tokenizer, sampling, None, chance
        played += run_episodes(environments, tasks, seeds, *acting)
    found: dict[str, float] = {}
    for number, side in enumerate(game.sides):
        returns = np.array([one.total_reward for one in played[number::2]])
        found |= {f"return_{side}": float(returns.mean()), f"error_{side}": float(returns.std(ddof=1) / games**0.5)}
        found[f"lost_{side}"] = float((returns < 0).mean())
    return found | {"lost": (found["lost_first"] + found["lost_second"]) / 2}


def run(kind: str, seed: int, start: Path, output: Path, flags: list[str]) -> dict[str, object]:
    """A whole run, and what came of it."""
    launch("lmgym/apps/games/experiments/self_play.py", start, output, ["--seed", seed, *OPPONENTS[kind], *flags])
    lines = metrics_of(output)
    names = ("eval/reward/mean", "eval/episode/lost", "eval/episode/return_first", "eval/episode/return_second")
    curve = {str(line["step"]): [line[name] for name in names] for line in lines if names[0] in line}
    made = {"opponents": kind, "seed": seed, "cpu_seconds": seconds_of(output), "updates": lines[-1]["step"]}
    return {**made, **against_random(output / "model"), "curve": curve}


def main() -> None:
    """Runs all seeds, prints and writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/self_play.json")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--opponents", nargs="*", choices=OPPONENTS, default=list(OPPONENTS))
    arguments, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        start = make_start("tic_tac_toe", Path(folder) / "start")
        found: dict[str, object] = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "bars": {"random": f"return_first > {FIRST_RETURN}", "self": f"lost <= {MOST_LOST}"},
            "start": against_random(start),
        }
        print("start", found["start"], flush=True)
        runs = []
        for kind in arguments.opponents:
            for seed in arguments.seeds:
                runs.append(run(kind, seed, start, Path(folder) / f"{kind}{seed}", flags))
                print({key: value for key, value in runs[-1].items() if key != "curve"}, flush=True)
                write_result(arguments.output, {**found, "runs": runs}, "method", "sampler")


if __name__ == "__main__":
    main()
