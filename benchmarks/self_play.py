"""Tic-tac-toe by self-play alone, and against the random player: all seeds, against the bars.

    .venv/bin/python benchmarks/self_play.py        # writes benchmarks/results/self_play.json

The experiment as it is (`ppo/experiments/self_play.py`), launched as a user launches it, on one rank and thread; with
`--opponents random` for the second bar. Final policies play 2,000 games against the random player on either side at
temperature 1. Bars: moving first against random, trained against random, a mean return above 0.9; by self-play alone,
at most 5% lost. The start, which only copies random legal moves, is played too: it must miss both.
"""

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from launched import ROOT, launch, metrics_of, seconds_of
from machine import describe_machine

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.environments.self_play.matches import play_games
from lmgym.environments.self_play.two_players import find_two_player_game, make_start
from lmgym.generation.local_generation import load_causal
from lmgym.generation.protocol import Sampling, ScriptedGenerator

SEEDS, GAMES = (0, 1, 2), 2000
FIRST_RETURN, MOST_LOST = 0.9, 0.05
OPPONENTS = {"self": (), "random": ("--opponents", "random")}


def against_random(folder: Path, games: int = GAMES) -> dict[str, float]:
    """Mean return and share of lost games of a policy, moving first and second."""
    game = find_two_player_game("tic_tac_toe")
    policy, chance = load_causal(str(folder)), ScriptedGenerator(game.script("random"))
    found: dict[str, float] = {}
    for side, players in (("first", (policy, chance)), ("second", (chance, policy))):
        named = dict(zip(game.sides, players, strict=True))
        played = play_games([game.make() for _ in range(games)], range(games), named, Sampling(game.max_new_tokens))
        returns = np.array([one[side] for one in played])
        error = float(returns.std(ddof=1) / games**0.5)
        found |= {f"return_{side}": float(returns.mean()), f"error_{side}": error}
        found[f"lost_{side}"] = float((returns < 0).mean())
    return found | {"lost": (found["lost_first"] + found["lost_second"]) / 2}


def run(kind: str, seed: int, start: Path, output: Path, flags: list[str]) -> dict[str, object]:
    """A whole run, and what came of it."""
    launch("ppo/experiments/self_play.py", start, output, ["--seed", seed, *OPPONENTS[kind], *flags])
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
                arguments.output.write_text(json.dumps({**found, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
