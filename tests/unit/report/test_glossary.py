"""The definitions of metrics."""

import pytest

from lmgym.report.curves import CURVES
from lmgym.report.facts import CARDS
from lmgym.report.glossary import definition
from lmgym.report.key_figures import MAIN_METRICS


def test_every_metric_of_the_charts_the_cards_and_the_list_of_runs_is_defined() -> None:
    names = {name for curve in CURVES for names in curve.series.values() for name in names.split("|")}
    names |= {name for _, names in CARDS for name in names.split("|")} | {metric.name for metric in MAIN_METRICS}
    assert [name for name in sorted(names) if not definition(name)] == []


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("eval/accuracy_low", "Lower end of the 95% interval of eval/accuracy."),
        ("eval/retention/d3_auc_within_prompts", "the user came back after 3 days"),
        ("eval/retention/d3_auc_within_prompts", "Only pairs of replies to the same prompt count."),
        ("eval/gold/gold_spearman", "hidden utility"),
        ("eval/monitor/mine_gain", "in standard deviations over the replies then"),
        ("scores/mine", "Mean score by this scorer."),
    ],
)
def test_a_name_is_explained_with_its_endings(name: str, meaning: str) -> None:
    assert meaning in definition(name)


def test_a_name_that_nobody_knows_is_not_explained() -> None:
    assert definition("metrics/of_my_own_game") == ""
