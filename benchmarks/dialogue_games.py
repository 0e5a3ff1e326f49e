"""Learning in dialogue games, and episodes a CPU second, in games of our own and of clembench.

    .venv/bin/python benchmarks/dialogue_games.py          # adds to benchmarks/results/dialogue_games.json
    LMGYM_CLEMCORE=PATH .venv/bin/python benchmarks/dialogue_games.py --parts speed --checkout PATH

learning: SFT of a small policy on records of scripted players, stopped early by its quality in training games, then
GRPO, launched as a user launches it; both play the same held-out instances.
speed: games whose players say the same at every turn, on one thread.
"""

import argparse
import datetime
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from shared import ROOT, describe_machine, launch, metrics_of, rewards_of, seconds_of, write_result

sys.path.insert(0, str(ROOT))  # beside this file lies ppo.py, another benchmark

from lmgym.apps.games.dialogue.syllables import SMALL_GAMES, make_start
from lmgym.apps.playpen.clembench.clembench_game import ClembenchGame, open_game
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import Game, close_games, play, tasks_of
from lmgym.apps.playpen.registries.games import load_games
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.environments.rollout_engine import run_episodes
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.statistics import mean

PARTS = ("learning", "speed")
ROLE, STEPS, TRIES = "guesser", range(200, 1601, 50), 4
AT_ONCE = {1: 64, 64: 256, 256: 512}  # episodes
WORD = "guess: stove\nexplanation: a common word"
SAYINGS = {
    "taboo": ("CLUE: a thing that one knows", "GUESS: nothing"), "word_guess": (WORD,), "wordle": (WORD,),
}  # fmt: skip


class Setting(NamedTuple):
    """The size of a game's evaluation, the quality that GRPO begins with, and its flags."""

    instances: int
    times: int
    """games of each held-out instance"""
    quality: float
    """in training games: SFT stops at the first of STEPS with it"""
    flags: str = ""


SETTINGS = {
    "taboo_syllables": Setting(125, 8, 15),  # all held-out words
    "word_guess_clue_syllables": Setting(
        200, 4, 20, "--learning_rate 5e-4 --credit turn --entropy_coef 0.01 --max_updates 320"
    ),
}


def qualities(name: str, folder: Path, split: str, times: int) -> np.ndarray:
    """[instance, 2]: Main Score (0 if aborted) and aborted, means of so many games at temperature 1."""
    game, tokenizer = SMALL_GAMES[name], load_tokenizer(str(folder))
    policy = LocalGenerator(load_policy(str(folder), tokenizer), tokenizer, generation_batch_size=256)
    tasks = game.tasks(SETTINGS[name].instances, split=split) * times
    others = {role: ScriptedGenerator(game.script(role)) for role in game.roles if role != ROLE}
    environments = [game.environment() for _ in tasks]
    given = environments, tasks, range(len(tasks)), policy, tokenizer, Sampling(10, seed=1), None, others
    found = [(e.info["main_score"], e.info["aborted"]) for e in run_episodes(*given)]
    return np.array(found).reshape(times, -1, 2).mean(0)


def make_stopped_start(name: str, seed: int, folder: Path) -> tuple[Path, int]:
    """The policy that GRPO begins with, and its steps of SFT. Raises ValueError if none is good enough."""
    for steps in STEPS:
        start = make_start(name, folder / f"{name}{seed}_{steps}", seed, steps)
        if qualities(name, start, "train", TRIES)[:, 0].mean() >= SETTINGS[name].quality:
            return start, steps
    raise ValueError(f"{name}, seed {seed}: quality below {SETTINGS[name].quality} after {steps} steps of SFT")


def learn(name: str, seed: int, folder: Path, flags: list[str]) -> dict[str, object]:
    """SFT, then GRPO: quality and share played on held-out instances, before and after."""
    began = time.process_time()
    (start, steps), output = make_stopped_start(name, seed, folder), folder / f"{name}{seed}_run"
    sft_seconds, setting = time.process_time() - began, SETTINGS[name]
    before = qualities(name, start, "validation", setting.times)
    own = ["--environment", f"dialogue:{name}/{ROLE}?instances=48", "--seed", seed]
    launch("lmgym/apps/games/experiments/dialogue_games.py", start, output, [*own, *setting.flags.split(), *flags])
    after = qualities(name, output / "model", "validation", setting.times)
    found = mean((after - before)[:, 0])
    return {
        "game": name, "seed": seed, "sft_steps": steps, "quality": [float(x[:, 0].mean()) for x in (before, after)],
        "played": [float(100 * (1 - x[:, 1].mean())) for x in (before, after)], "gain": found.value,
        "half_interval": ((found.high or 0.0) - (found.low or 0.0)) / 2, "sft_cpu_seconds": sft_seconds,
        "grpo_cpu_seconds": seconds_of(output),
        "reward": rewards_of(metrics_of(output)),
    }  # fmt: skip


def speed(game: Game, at_once: int) -> dict[str, object]:
    """Episodes a CPU second of this process and the game's own, which has loaded the game before."""
    players = [Model(Spec({"model_name": f"of {seat}", "backend": "huggingface_local"})) for seat in game.seats]
    for player, saying in zip(players, SAYINGS[game.spec.name], strict=True):
        vars(player)["generator"] = ScriptedGenerator((saying,))
    tasks = (tasks_of(game) * AT_ONCE[at_once])[: AT_ONCE[at_once]]
    began, theirs = time.process_time(), _cpu_seconds(game)
    records = play(game, players, tasks, at_once=at_once)
    own, theirs = time.process_time() - began, _cpu_seconds(game) - theirs
    assert not any(one.failure for one in records), records[0].failure
    turns = sum(len(one.requests) for one in records) / len(records)
    of = "clembench" if isinstance(game, ClembenchGame) else "lmgym"
    return {
        "game": game.spec.name, "of": of, "at_once": at_once, "per_cpu_second": len(tasks) / (own + theirs),
        "turns": turns, "share_of_the_games_process": theirs / (own + theirs),
    }  # fmt: skip


def _cpu_seconds(game: Game) -> float:
    """Of the subprocess of a game of clembench so far; 0 for one of ours."""
    if not isinstance(game, ClembenchGame):
        return 0.0
    words = Path(f"/proc/{game.bridge.process._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Runs the parts, prints and writes what was measured; a figure replaces the one of the same game and setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--games", nargs="+", default=list(SMALL_GAMES), choices=list(SMALL_GAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=(0, 1, 2))
    parser.add_argument("--checkout", type=Path, help="of clembench")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/dialogue_games.json")
    given, flags = parser.parse_known_args()
    torch.set_num_threads(1)
    found = json.loads(given.output.read_text()) if given.output.exists() else {}

    def keep(part: str, one: dict[str, object], *key: str) -> None:
        print({k: v for k, v in one.items() if k != "reward"}, flush=True)
        others = [r for r in found.get(part, []) if any(r[k] != one[k] for k in key)]
        found.update({"date": f"{datetime.datetime.now(datetime.UTC):%F}", "machine": describe_machine()})
        found[part] = [*others, one]
        write_result(given.output, found, "method", "sampler")

    with tempfile.TemporaryDirectory() as folder:
        if "learning" in given.parts:
            for name in given.games:
                for seed in given.seeds:
                    keep("learning", learn(name, seed, Path(folder), flags), "game", "seed")
        registry = load_games(str(given.checkout) if given.checkout else None)
        if "speed" in given.parts:
            names = [name for name in SAYINGS if name in registry.names]
            for spec in [spec for spec in registry.specs if spec.name in names]:
                game = open_game(spec)
                for at_once in AT_ONCE:
                    keep("speed", speed(game, at_once), "game", "of", "at_once")
                close_games([game])


if __name__ == "__main__":
    main()
