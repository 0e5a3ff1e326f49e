"""A small policy from scratch learns tic-tac-toe from games against itself alone; a broken version does not.

The bar is for the first 640 of the experiment's 4,000 updates: 10,240 games. At random 43% of the games are lost.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lmgym.config import RunConfig
from lmgym.environments.self_play.two_players import make_start
from ppo.experiments.self_play import CONFIG
from ppo.rollouts import Rollouts
from ppo.self_play.setups import self_play
from ppo.train import train

UPDATES, LOST = 640, 0.33


def lost_to_random(folder: Path) -> list[float]:
    """Shares of 512 games lost to the random player, before and after."""
    config = replace(
        CONFIG,
        policy=replace(CONFIG.policy, model=str(make_start("tic_tac_toe", folder / "start"))),
        optimizer=replace(CONFIG.optimizer, max_updates=UPDATES),
        run=RunConfig(str(folder / "run"), tracking="none", eval_updates=UPDATES, save_updates=-1),
    )
    train(config, self_play)
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return [line["eval/episode/lost"] for line in lines if "eval/episode/lost" in line]


@pytest.mark.slow
def test_games_against_itself_teach_it_to_beat_the_random_player(tmp_path: Path) -> None:
    before, after = lost_to_random(tmp_path)
    assert before > 0.38
    assert after < LOST


@pytest.mark.slow
def test_a_policy_that_is_rewarded_for_what_it_loses_does_not(monkeypatch, tmp_path: Path) -> None:
    padded = Rollouts.padded
    monkeypatch.setattr(
        Rollouts, "padded", lambda self, values: padded(self, -values if values is self.scores else values)
    )
    assert lost_to_random(tmp_path)[-1] > 0.38
