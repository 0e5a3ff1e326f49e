"""The metric by which runs are listed."""

import json
from pathlib import Path

import pytest

from lmgym.report.costs import cost_of
from lmgym.report.key_figures import before_and_after, main_metric
from lmgym.report.run_files import RunFiles


def test_each_stage_has_its_metric() -> None:
    names = {
        "eval/reward/mean": {"reward/mean", "eval/reward/mean", "eval/rollout/turns", "metrics/optimality"},
        "eval/perplexity": {"eval/loss", "eval/perplexity", "eval/token_accuracy"},
        "eval/accuracy": {"eval/accuracy", "eval/nll", "train/accuracy"},
        "eval/spearman": {"eval/spearman", "eval/loss"},
        "eval/label_accuracy": {"eval/auc", "eval/label_accuracy"},
        "eval/top_1_acc": {"eval/top_1_acc", "eval/top_2_acc"},
        "eval/win_rate": {"eval/win_rate", "eval/kl"},
    }
    for name, logged in names.items():
        found = main_metric(logged)
        assert found is not None
        assert found.name == name
        assert found.higher_is_better == (name != "eval/perplexity")


def test_a_run_that_was_not_evaluated_has_none() -> None:
    assert main_metric({"train/loss", "train/accuracy"}) is None


@pytest.mark.parametrize(
    ("cost", "time", "words"),
    [
        ({"gpus": 2, "cpu_seconds": 60.0, "seconds": 3600.0}, None, "2.0 h of GPU time"),
        ({"gpus": 0, "cpu_seconds": 720.0, "seconds": 3.0}, None, "12 min of CPU time"),
        ({"seconds": 120.0}, None, "2 min"),
        ({}, 120.0, "2 min"),
        ({}, None, ""),
    ],
)
def test_a_run_costs_gpu_time_or_cpu_time_or_else_what_the_clock_says(cost, time, words: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(cost))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": time} if time else {"step": 1}) + "\n")
    assert cost_of(RunFiles(tmp_path)) == words


def test_a_figure_of_update_0_is_before_and_never_the_result() -> None:
    assert before_and_after([(0, 0.5)]) == ((0, 0.5), None)
    assert before_and_after([(0, 0.5), (4, 0.6), (8, 0.7)]) == ((0, 0.5), (8, 0.7))
    assert before_and_after([(4, 0.6)]) == (None, (4, 0.6))
    assert before_and_after([]) == (None, None)


def test_the_result_is_of_the_model_that_is_kept() -> None:
    points = [(0, 0.5), (4, 0.6), (8, 0.7)]
    assert before_and_after(points, kept=4).after == (4, 0.6)
    assert before_and_after(points, kept=5).after == (4, 0.6), "the last that was measured before it"
    assert before_and_after(points, kept=2).after is None
