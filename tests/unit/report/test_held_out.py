"""Panels of held-out scores, against numbers computed by hand or by another library."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from lmgym.report.held_out import held_out
from lmgym.report.panels import Panel
from lmgym.report.run_files import RunFiles


def panels(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Panel]:
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {panel.id: panel for panel in held_out(RunFiles(folder))}


def values(panel: Panel) -> list[dict[str, Any]]:
    assert panel.chart
    return panel.chart["data"]["values"]


def pairs(n: int = 40) -> list[dict[str, Any]]:
    """Margins of 0.1 to 4; the pairs of small margin, and those whose chosen reply is the shorter one, are wrong."""
    rows = []
    for i in range(n):
        margin = (i + 1) / 10
        sides = (0.0, margin) if i < n // 2 else (margin, 0.0)
        rows.append({"prompt": i, "chosen": sides[0], "rejected": sides[1], "lengths": [10 + (i >= n // 2), 10]})
    return rows


def test_accuracy_rises_with_the_margin_in_groups_of_equal_size(tmp_path: Path) -> None:
    found = values(panels(tmp_path, pairs())["accuracy_by_margin"])
    assert [row["y"] for row in found] == [0, 0, 0.5, 1, 1]
    expected = binomtest(4, 8).proportion_ci(method="wilson")
    assert (found[2]["low"], found[2]["high"]) == pytest.approx((expected.low, expected.high))


def test_groups_of_pairs_of_one_prompt_have_no_interval(tmp_path: Path) -> None:
    found = values(panels(tmp_path, [row | {"prompt": row["prompt"] // 8} for row in pairs()])["accuracy_by_margin"])
    assert all(row["low"] is None and row["high"] is None for row in found)


def test_accuracy_by_length_is_of_the_difference_in_tokens(tmp_path: Path) -> None:
    rows = [row | {"lengths": [10 + (-5 if i < 20 else 5), 10]} for i, row in enumerate(pairs())]
    rows += [row | {"lengths": [10, 10]} for row in pairs()]
    found = values(panels(tmp_path, rows)["accuracy_by_length"])
    # 20 pairs of -5, all wrong; 40 of 0, half of them right, in one group with 20 of 5, all right
    assert [(row["x"], row["y"]) for row in found] == [("-5 to 0", 0.0), ("0 to 5", pytest.approx(2 / 3))]


def test_the_reliability_diagram_has_the_confidence_and_accuracy_of_each_bin(tmp_path: Path) -> None:
    rows = pairs()
    found = values(panels(tmp_path, rows)["reliability"])
    margins = np.array([row["chosen"] - row["rejected"] for row in rows])
    confidence = 1 / (1 + np.exp(-np.abs(margins)))
    inside = (confidence >= 0.625) & (confidence < 0.75)  # 40 pairs are in 4 bins
    [point] = [point for point in found if 0.625 <= point["x"] < 0.75]
    assert point["x"] == pytest.approx(confidence[inside].mean())
    assert point["y"] == pytest.approx((margins[inside] > 0).mean())
    assert sum(point["n"] for point in found) == len(rows)
    expected = binomtest(int((margins[inside] > 0).sum()), int(inside.sum())).proportion_ci(method="wilson")
    assert point["low"] < point["y"] + 1e-9
    assert point["high"] == pytest.approx(expected.high, abs=0.15)


def test_many_pairs_have_ten_bins_of_confidence(tmp_path: Path) -> None:
    rows = [{"prompt": i, "chosen": i / 50, "rejected": 0.0} for i in range(1, 201)]
    assert len(values(panels(tmp_path, rows)["reliability"])) == 10


@pytest.mark.parametrize("number", [1, 2, 9])
def test_a_few_pairs_have_all_their_panels_with_what_can_be_said(number: int, tmp_path: Path) -> None:
    found = panels(tmp_path, pairs(40)[20 : 20 + number])
    assert set(found) == {"reliability", "accuracy_by_margin", "accuracy_by_length", "score_distribution"}
    [point] = values(found["reliability"])
    assert (point["n"], point["y"]) == (number, 1)
    assert (point["low"] is None) == (number == 1)  # one prompt is too few for an interval
    assert f"{number} pairs on {number} prompts" in found["reliability"].about
    counted = values(found["score_distribution"])
    assert [sum(row["y"] for row in counted if row["series"] == side) for side in ("chosen", "rejected")] == [
        number
    ] * 2


def test_distributions_of_many_replies_are_shares_of_each_side(tmp_path: Path) -> None:
    found = values(panels(tmp_path, pairs(60))["score_distribution"])
    for side in ("chosen", "rejected"):
        assert sum(row["y"] for row in found if row["series"] == side) == pytest.approx(1)


def test_a_bar_says_how_many_pairs_it_stands_for(tmp_path: Path) -> None:
    assert [row["n"] for row in values(panels(tmp_path, pairs())["accuracy_by_margin"])] == [8] * 5


def test_labelled_replies_have_the_share_of_their_labels_by_score(tmp_path: Path) -> None:
    rows = [
        {"row_id": i, "user_id": 1, "score": 0.05 + 0.9 * (i % 2), "accepted": float(i % 4 == 1)} for i in range(40)
    ]
    found = panels(tmp_path, rows)
    points = values(found["reliability"])
    assert [(point["x"], point["y"], point["n"]) for point in points] == [
        (pytest.approx(0.05), 0.0, 20), (pytest.approx(0.95), 0.5, 20),
    ]  # fmt: skip
    assert {row["series"] for row in values(found["score_distribution"])} == {"accepted: yes", "accepted: no"}


def test_ranked_replies_have_a_distribution_per_rank(tmp_path: Path) -> None:
    rows = [{"prompt": i, "scores": [1.0, 0.5, 0.0], "ranks": [1, 2, 3]} for i in range(5)]
    found = panels(tmp_path, rows)
    assert {row["series"] for row in values(found["score_distribution"])} == {"rank 1", "rank 2", "rank 3"}


def test_a_run_without_scores_has_no_panels(tmp_path: Path) -> None:
    assert held_out(RunFiles(tmp_path)) == []
