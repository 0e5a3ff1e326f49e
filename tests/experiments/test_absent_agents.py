"""Agents that need not act: ranks of which one has no reply of the policy train as one process does."""

from pathlib import Path

import pytest
from launching import ROOT, largest_difference, launch, read_lines, read_metrics, read_weights, run

SCRIPT = ROOT / "tests/experiments/absent_agents_script.py"
SAME = ("reward/mean", "rollout/absent_agents", "rollout/trained_tokens", "loss/policy", "kl/reference")


@pytest.mark.slow  # two launches, of ranks without work, which few changes touch
@pytest.mark.parametrize("method", ["ppo", "grpo"])
def test_a_rank_whose_games_asked_no_trained_agent_learns_with_the_others(
    method: str, talkative_models: dict[str, Path], tmp_path: Path
) -> None:
    folders: dict[str, Path] = {}
    for kind in ("fork", "forks"):
        folders[kind] = tmp_path / kind
        done = run(launch(kind, talkative_models["gpt2"], folders[kind], method, script=SCRIPT))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        assert "are of agents that did not act in their game: masked" in " ".join(done.stdout.split())
    alone, shared = read_metrics(folders["fork"]), read_metrics(folders["forks"])
    assert set(alone["rollout/absent_agents"].values()) == {0.5}
    for name in SAME:
        assert shared[name] == pytest.approx(alone[name], abs=1e-5), name
    assert largest_difference(read_weights(folders["forks"]), read_weights(folders["fork"])) < 1e-5
    games = [row for path in (folders["forks"] / "episodes").glob("rollouts-*") for row in read_lines(path)]
    assert games
    assert all(bool(row["agents"]) == row["task"]["asks"] for row in games), "a borrowed step is in no record"
