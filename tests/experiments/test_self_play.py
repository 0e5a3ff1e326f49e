"""Self-play and a pool of opponents in PPO's loop, and the episodes that it writes.

The models are untrained: their replies are illegal, so that who moves first loses, -1 to 1.
"""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from launching import read_lines, read_metrics
from ppo_in_process import train_small
from safetensors.torch import load_file

from lmgym.apps.games.self_play.ppo_setup import self_play
from lmgym.errors import InputError, RunStopped
from lmgym.report.page import run_sections
from lmgym.report.run_files import RunFiles
from ppo.config import RolloutConfig
from ppo.monitoring import episode_files
from ppo.opponents import draw_opponent


@pytest.fixture
def go(talkative_models: dict[str, Path], tmp_path: Path):
    """Trains on tic-tac-toe with some settings changed: the folder."""
    rows = Path(RolloutConfig().prompts)
    game = {"environment": "games:tic_tac_toe", "eval_size": 4}
    return partial(train_small, talkative_models["gpt2"], rows, tmp_path, self_play, **game)


def test_in_self_play_each_side_is_compared_with_itself_and_the_rewards_add_up_to_0(go) -> None:
    folder = go(method="rloo", num_generations=4, max_updates=8)
    metrics = read_metrics(folder)
    assert metrics["reward/mean"][8] == 0
    assert metrics["groups/reward_std"][8] == 0, "mixed, -1 and 1 would differ by 1 from their mean"
    assert metrics["groups/equal_rewards"][8] == 1
    [game, *_] = read_lines(folder / "episodes/rollouts-00000008.jsonl")
    assert game["returns"] == {"first": -1.0, "second": 1.0}
    assert {turn["advantage"] for turns in game["agents"].values() for turn in turns} == {0.0}
    assert metrics["eval/episode/return_first"][8] == -1, "evaluations are against the random player"


def opponents(folder: Path) -> list[float]:
    return list(read_metrics(folder)["opponent/iteration"].values())


def test_a_run_against_a_pool_that_was_stopped_goes_on_with_the_same_opponents(
    go, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_updates": 20, "pool_every": 2, "save_updates": 4, "learning_rate": 1e-2}
    whole = go(name="whole", opponents=f"pool:{tmp_path / 'a'}", **settings)
    assert opponents(whole) == [draw_opponent(0, i, 2) for i in range(5)]
    assert len(set(opponents(whole))) > 1
    write, calls = episode_files.write_games, []

    def stops(run, kind, update, games) -> None:
        calls.append(kind)
        if calls.count("rollouts") == 4:
            raise RunStopped("stopped", "failed", 69)
        write(run, kind, update, games)

    monkeypatch.setattr(episode_files, "write_games", stops)
    with pytest.raises(RunStopped):
        go(name="again", opponents=f"pool:{tmp_path / 'b'}", **settings)
    monkeypatch.undo()
    again = go(name="again", opponents=f"pool:{tmp_path / 'b'}", **settings)
    assert opponents(again) == opponents(whole)
    assert read_metrics(again)["loss/policy"] == read_metrics(whole)["loss/policy"]
    members = sorted(path.name for path in (tmp_path / "a").glob("iteration_*"))
    assert members == ["iteration_00000000", "iteration_00000002", "iteration_00000004"]
    weights = [[load_file(tmp_path / p / m / "model/model.safetensors") for m in members] for p in "ab"]
    for one, other in zip(*weights, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(*(of["transformer.wte.weight"] for of in weights[0][:2])), "the policy has learned since"
    with pytest.raises(InputError, match="holds the pool of the run in"):
        go(name="other", opponents=f"pool:{tmp_path / 'a'}", **settings)


def test_recorded_games_are_in_the_report_and_are_played_again(go, tmp_path: Path, capsys) -> None:
    settings = {"opponents": "random", "max_updates": 4}
    folder = go(**settings)
    [file] = (folder / "episodes").glob("rollouts-*.jsonl")
    rows = read_lines(file)
    assert [row["task"]["side"] for row in rows].count("first") == 4
    assert len(rows) == 8
    assert len(read_lines(folder / "episodes/evaluation-00000004.jsonl")) == 4
    [panel] = [p for section in run_sections(RunFiles(folder)) for p in section.panels if p.id == "conversations"]
    assert {episode["name"].partition(",")[0] for episode in panel.episodes} >= {"episode 0", "evaluation"}
    notes = [turn["notes"] for episode in panel.episodes for turn in episode["turns"]]
    assert "opponent, not trained" in notes
    capsys.readouterr()
    go(replay=f"{file}:3", **settings)
    assert "observations and rewards as they were recorded" in " ".join(capsys.readouterr().out.split())
    changed = [row | {"task": {"side": "second" if row["task"]["side"] == "first" else "first"}} for row in rows]
    other = tmp_path / "rollouts-00000001.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in changed))
    with pytest.raises(RunStopped, match="line 3 is not played as it was recorded: step 0: the game waits for") as stop:
        go(replay=f"{other}:3", **settings)
    assert stop.value.exit_code == 1
    with pytest.raises(InputError, match="line 99: there is no such line"):
        go(replay=f"{file}:99", **settings)
