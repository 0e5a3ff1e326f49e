"""The metric by which runs are listed."""

from lmgym.report.key_figures import main_metric


def test_each_stage_has_its_metric() -> None:
    names = {
        "eval/reward/mean": {"reward/mean", "eval/reward/mean", "eval/rollout/turns", "metrics/optimality"},
        "eval/perplexity": {"eval/loss", "eval/perplexity", "eval/token_accuracy"},
        "eval/accuracy": {"eval/accuracy", "eval/nll", "train/accuracy"},
        "eval/spearman": {"eval/spearman", "eval/loss"},
    }
    for name, logged in names.items():
        found = main_metric(logged)
        assert found is not None
        assert found.name == name
        assert found.higher_is_better == (name != "eval/perplexity")


def test_a_run_that_was_not_evaluated_has_none() -> None:
    assert main_metric({"train/loss", "train/accuracy"}) is None
