"""The figures that benchmarks/methods.py reads from the files of runs."""

import json
from argparse import Namespace
from pathlib import Path

import methods
import pytest
from methods import GRAPHS, flags_of, iterations, mean_curve, walk_on_graphs

from lmgym.environments.random_walks import draw_random_walks


def test_tokens_of_groups_that_were_played_again_count(tmp_path: Path) -> None:
    rows = [
        {"step": 0, "eval/reward/mean": 0.1},
        {"step": 8, "reward/mean": 0.3, "rollout/reply_tokens": 5.0},
        {"step": 16, "reward/mean": 0.5, "rollout/reply_tokens": 4.0, "groups/refilled": 0.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [row["tokens"] for row in iterations(tmp_path, 200)] == [1000, 1000 + 1200]


def test_seeds_are_averaged_at_equal_tokens() -> None:
    def row(*points: tuple[int, float]) -> dict:
        return {"curve": [{"tokens": tokens, "reward": reward} for tokens, reward in points]}

    places, mean, reach = mean_curve(
        [row((0, 0.0), (1000, 1.0)), row((0, 0.0), (2000, 1.0)), row((0, 0.0), (1000, 0.75))], "reward"
    )
    assert (places[0], places[-1]) == (0, 1)
    assert mean[-1] == pytest.approx(0.75)
    assert reach[-1] == pytest.approx(4.303 * 0.25 / 3**0.5)


def test_only_methods_that_compare_replies_get_groups() -> None:
    assert flags_of("ppo", ("--ppo_epochs", "4"), 10) == []
    assert flags_of("reinforce_pp", ("--ppo_epochs", "4"), 10) == ["--method", "reinforce_pp", "--ppo_epochs", "4"]
    assert "--num_generations" in flags_of("rloo", (), 10)


def test_runs_on_graphs_go_on_where_they_stopped_and_are_averaged_over_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[int, str, int]] = []

    def walk_on(graph: int, method: str, seed: int, start: Path) -> dict[str, float]:
        played.append((graph, method, seed))
        worth = 0.9 if graph == 1000 else 0.7 + 0.1 * seed
        return {"graph": graph, "seed": seed, "sampled": worth, "greedy": 1.0}

    monkeypatch.setattr(methods, "walk_on", walk_on)
    monkeypatch.setattr(methods, "make_start", lambda folder, graph: folder)
    monkeypatch.setattr(methods, "optimality", lambda folder, graph: {"sampled": 0.3, "greedy": 0.3})
    found: dict = {}
    for seeds in ([0], [0, 1]):
        asked = Namespace(graphs=[1000, 1002], seeds=seeds, methods=["ppo"])
        walk_on_graphs(found, asked, tmp_path, lambda: None)
    assert played == [(1000, "ppo", 0), (1002, "ppo", 0), (1000, "ppo", 1), (1002, "ppo", 1)]
    assert found["graphs"]["1000"]["walks"] == pytest.approx(0.352, abs=1e-3)
    means = found["means"]["ppo"]
    assert means["sampled"] == pytest.approx((0.9 + 0.9 + 0.7 + 0.8) / 4)
    # two graphs are two units, whatever the number of runs
    assert means["sampled_high"] - means["sampled_low"] > 0.5
    assert not any((draw_random_walks(graph, walks=0).shortest == 10).any() for graph in GRAPHS)
