"""The definitions of metrics."""

import pytest

from lmgym.report.curve_table import CURVES
from lmgym.report.facts import CARDS
from lmgym.report.known_metrics import MAIN_METRICS, definition, metric_of, short_name
from lmgym.runs.conclusion import NOT_OPTIMISED
from lmgym.training.callbacks import ShowStatus
from ppo.monitoring.metrics import LINE


def test_every_metric_of_the_charts_the_cards_and_the_list_of_runs_is_defined() -> None:
    names = {name for curve in CURVES for names in curve.series.values() for name in names.split("|")}
    names |= {*CARDS, *MAIN_METRICS, *LINE, *ShowStatus.SHOWN, *NOT_OPTIMISED}
    assert [name for name in sorted(names) if not definition(name)] == []


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("eval/accuracy_low", "Lower end of the 95% interval of eval/accuracy."),
        ("eval/retention/d3_auc_within_prompts", "the user came back after 3 days"),
        ("eval/retention/d3_auc_within_prompts", "Only pairs of replies to the same prompt count."),
        ("eval/gold/gold_spearman", "hidden utility"),
        ("eval/monitor/mine_gain", "in standard deviations over the replies then"),
        ("scores/mine", "Mean score by the scorer mine"),
        ("eval/accuracy", "Unit: share of pairs. Its 95% interval is over prompts."),
        ("metrics/mine", "the run's own metric function"),
    ],
)
def test_a_name_is_explained_with_its_endings(name: str, meaning: str) -> None:
    assert meaning in definition(name)


def test_a_name_that_nobody_knows_is_not_explained() -> None:
    assert definition("of_my_own/game") == ""
    assert definition("train/accuracy", "sft") == "", "SFT logs none of pairs"


def test_accuracies_of_tokens_of_pairs_and_of_labels_differ_in_title_unit_and_stage() -> None:
    found = [metric_of(f"eval/{name}") for name in ("token_accuracy", "accuracy", "label_accuracy")]
    known = [metric for metric in found if metric]
    assert [metric.title for metric in known] == ["accuracy of tokens", "accuracy of pairs", "accuracy of labels"]
    assert [metric.unit for metric in known] == ["share of tokens", "share of pairs", "share of labels"]
    assert [sorted(metric.stages) for metric in known] == [["sft"], ["preferences", "reward_models"], ["reward_models"]]


def test_a_name_that_two_stages_log_is_explained_as_the_stage_means_it() -> None:
    users, prompts = (metric_of("eval/auc", stage) for stage in ("reward_models", "preferences"))
    assert users
    assert prompts
    assert (users.over, prompts.over) == ("users", "prompts")


def test_a_figure_of_held_out_prompts_is_told_from_that_of_rollouts() -> None:
    assert (short_name("reward/mean"), short_name("eval/reward/mean")) == ("reward", "held-out reward")
    assert (short_name("kl/reference"), short_name("eval/eval_scorer")) == ("KL", "evaluation scorer")
