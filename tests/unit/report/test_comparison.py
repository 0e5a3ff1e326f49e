"""Runs side by side; the paired test against exact enumeration and scipy."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmgym.report.comparison import Comparison, PairedTest, paired_test
from lmgym.report.run_files import RunFiles


def run(folder: Path, scores: list[dict[str, Any]] = [], config: dict[str, Any] = {}, **record: Any) -> RunFiles:  # noqa: B006
    folder.mkdir(parents=True)
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scores))
    (folder / "run.json").write_text(json.dumps({"config": config, "outcome": "finished", **record}))
    return RunFiles(folder)


def pairs(right: list[bool], prompts: list[int] | None = None) -> list[dict[str, Any]]:
    return [
        {"prompt": p, "row": f"a:{i}", "chosen": float(ok), "rejected": 0.5, "lengths": [1, 2]}
        for i, (ok, p) in enumerate(zip(right, prompts or range(len(right)), strict=True))
    ]


def test_the_p_value_is_that_of_all_sign_flips(tmp_path: Path) -> None:
    first, second = [False] * 8 + [True] * 2, [True] * 7 + [False] + [True, False]
    found = paired_test(run(tmp_path / "a", pairs(first)), run(tmp_path / "b", pairs(second)))
    differences = np.array(second, int) - np.array(first, int)
    flips = [abs(np.dot(signs, differences)) for signs in itertools.product((-1, 1), repeat=10)]
    exact = np.mean(np.array(flips) >= abs(differences.sum()))
    assert isinstance(found, PairedTest)
    assert (found.what, found.difference.rows, found.difference.value) == (
        "accuracy",
        10,
        pytest.approx(differences.mean()),
    )
    assert found.p == pytest.approx(exact, abs=0.01)
    assert found.difference.low < found.difference.value < found.difference.high
    assert str(found).endswith("10 rows of only 10 prompts")


def test_pairs_of_one_prompt_are_flipped_and_drawn_together(tmp_path: Path) -> None:
    prompts = [i // 10 for i in range(80)]
    first = run(tmp_path / "a", pairs([False] * 80, prompts))
    second = run(tmp_path / "b", pairs([p < 5 for p in prompts], prompts))
    found = paired_test(first, second)
    assert isinstance(found, PairedTest)
    assert found.p == pytest.approx(2 * (1 / 2) ** 5, abs=0.01)  # 5 prompts of 8 differ, all in one direction


def test_equal_runs_differ_by_nothing(tmp_path: Path) -> None:
    rows = pairs([True, False] * 10)
    found = paired_test(run(tmp_path / "a", rows), run(tmp_path / "b", rows))
    assert isinstance(found, PairedTest)
    assert (found.difference.value, found.p) == (0, 1)
    assert found.difference.low < 0 < found.difference.high  # 20 rows could hide a difference


def test_other_held_out_rows_are_not_tested(tmp_path: Path) -> None:
    rows = pairs([True] * 10)
    others = [*rows[:-1], rows[-1] | {"row": "b:7"}]
    found = paired_test(run(tmp_path / "a", rows), run(tmp_path / "b", others))
    assert str(found).startswith("held-out rows differ: 10 and 10, 9 of them in common; give all runs the same rows")
    assert len(str(found)) < 300
    assert paired_test(run(tmp_path / "c"), run(tmp_path / "d", rows)) == "no results on held-out rows to compare"


def test_few_prompts_cannot_be_tested(tmp_path: Path) -> None:
    rows = pairs([True] * 10, [0] * 5 + [1] * 5)
    found = paired_test(run(tmp_path / "a", rows), run(tmp_path / "b", rows))
    assert found == "2 prompts are held out; needed for a test: 6"


def test_only_settings_that_differ_are_listed_without_those_of_one_run_only(tmp_path: Path) -> None:
    run(tmp_path / "x" / "a", config={"learning_rate": 1e-3, "seed": 0, "output": "x"}, world_size=1)
    run(tmp_path / "x" / "b", config={"learning_rate": 2e-3, "seed": 0, "output": "y", "vf": 1}, world_size=2)
    found = Comparison.of([tmp_path / "x" / "a", tmp_path / "x" / "b"])
    assert list(found.runs) == ["a", "b"]
    assert found.differences().rows == [("learning_rate", "0.001", "0.002"), ("ranks", "1", "2")]


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(tmp_path / name / "scorer")
    assert list(Comparison.of([tmp_path / "one/scorer", tmp_path / "two/scorer"]).runs) == ["one/scorer", "two/scorer"]


def test_results_have_the_figures_before_and_after_with_intervals(tmp_path: Path) -> None:
    run(tmp_path / "a")
    run(tmp_path / "b")
    figures = [(step, {"accuracy": a, "accuracy_low": a - 0.1, "accuracy_high": a + 0.1, "prompts": 12})
               for step, a in ((0, 0.5), (9, 0.75))]  # fmt: skip
    lines = [{"step": step, **{f"eval/{name}": value for name, value in own.items()}} for step, own in figures]
    (tmp_path / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = {row[0]: row[1:] for row in Comparison.of([tmp_path / "a", tmp_path / "b"]).results().rows}
    assert rows["accuracy of pairs"] == ("0.500 → 0.750 (0.650 to 0.850)", "–")
    assert rows["held-out prompts"] == ("only 12", "")
    assert rows["outcome"] == ("finished", "finished")


def test_a_page_of_runs_on_other_rows_says_so_and_what_to_do(tmp_path: Path) -> None:
    run(tmp_path / "a", pairs([True] * 10))
    run(tmp_path / "b", [row | {"row": f"b:{i}"} for i, row in enumerate(pairs([True] * 10))])
    run(tmp_path / "c", pairs([True] * 10))
    page = Comparison.of([tmp_path / "a", tmp_path / "b"]).page()
    assert "The held-out rows of the runs differ" in page
    assert "one --eval_dataset FILE" in page
    assert "The held-out rows of the runs differ" not in Comparison.of([tmp_path / "a", tmp_path / "c"]).page()


def test_rows_are_the_same_in_another_order_and_a_row_twice_is_two(tmp_path: Path) -> None:
    rows = pairs([True, False] * 6)
    found = paired_test(run(tmp_path / "a", [*rows, rows[0]]), run(tmp_path / "b", [rows[0], *rows[::-1]]))
    assert isinstance(found, PairedTest)
    assert (found.difference.value, found.difference.rows) == (0, 13)
    assert "12 of them in common" in str(paired_test(run(tmp_path / "c", rows), run(tmp_path / "d", [*rows, rows[0]])))


def test_a_run_whose_trained_model_was_not_evaluated_has_no_result_and_is_not_tested(tmp_path: Path) -> None:
    for name, steps in (("a", (0, 4)), ("b", (0,))):
        folder = tmp_path / name
        (folder / "samples").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"outcome": "interrupted", "stage": "ppo"}))
        lines = [{"step": step, "eval/reward/mean": 0.5 + step} for step in steps]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for step in steps:
            rows = [{"task": i, "agent": "p", "prompt": str(i), "reply": "x", "episode_reward": i} for i in range(8)]
            path = folder / f"samples/evaluation-{step:06d}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    a, b = (RunFiles(tmp_path / name) for name in "ab")
    found = Comparison.of([a.folder, b.folder])
    rows = {row[0]: row[1:] for row in found.results().rows}
    assert rows["held-out reward"] == ("0.500 → 4.500", "0.500 → none yet")
    assert rows["measured"] == ("after update 4", "–")
    assert (
        "b has no result yet: interrupted after 0 updates, before an evaluation of the trained model." in found.notes()
    )
    assert paired_test(a, b) == "no results on held-out rows to compare"
