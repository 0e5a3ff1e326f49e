"""Runs as methods, their figures and tests over seeds against scipy, and `one seed` where there is one."""

import importlib
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import needs_chromium, open_page
from scipy import stats

from lmgym.config import FREE_SETTINGS, OptimizerConfig, seed_settings
from lmgym.errors import InputError
from lmgym.report.comparison import Comparison
from lmgym.report.methods import SEEDS, SeedsTest, methods_of, seeds_tests
from lmgym.report.run_files import RunFiles
from lmgym.runs.fields import flatten

ROOT = Path(__file__).parents[3]


def run(folder: Path, seed: int = 0, accuracy: float = 0.5, before: float = 0.25, **record: Any) -> RunFiles:
    """A run that was evaluated before training and after 8 updates."""
    folder.mkdir(parents=True)
    config = {"learning_rate": 1e-3, "split_seed": 0, "output": folder.name, **record.pop("config", {}), "seed": seed}
    known = {"outcome": "finished", "data_fingerprint": "rows", "git": {"commit": "c0ffee"}, "config": config}
    (folder / "run.json").write_text(json.dumps(known | record))
    lines = [{"step": step, "eval/accuracy": value} for step, value in ((0, before), (8, accuracy))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunFiles(folder)


def several(root: Path, name: str, values: list[float], seeds: list[int] | None = None, **record: Any) -> list[Path]:
    numbers = seeds or range(len(values))
    return [run(root / f"{name}_s{s}", s, value, **record).folder for s, value in zip(numbers, values, strict=True)]


def names_of(runs: dict[str, RunFiles], ignored: list[str] = []) -> list[list[str]]:  # noqa: B006
    return [list(method.runs) for method in methods_of(runs, ignored)]


def cells(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    return {row[0]: tuple(row[1:]) for row in comparison.results().rows}


def test_the_seeds_are_the_settings_that_are_defined_as_seeds() -> None:
    assert seed_settings(OptimizerConfig) == SEEDS == {"seed", "split_seed"}


@pytest.mark.parametrize("stage", ["sft", "reward_models", "preferences", "ppo"])
def test_no_experiment_has_a_seed_that_compare_does_not_know(stage: str) -> None:
    paths = [path for path in sorted((ROOT / stage / "experiments").glob("*.py")) if path.stem != "__init__"]
    assert paths
    for path in paths:
        config = importlib.import_module(f"{stage}.experiments.{path.stem}").CONFIG
        values = [getattr(config, part.name) for part in fields(config)]  # not what it has computed and kept
        groups = [config, *filter(is_dataclass, values)]
        assert frozenset().union(*(seed_settings(type(group)) for group in groups)) == SEEDS, path
        assert flatten(config).keys() >= SEEDS, path


def test_runs_that_differ_in_seeds_and_free_settings_alone_are_one_method(tmp_path: Path) -> None:
    runs = {
        "a": run(tmp_path / "a", 0),
        "b": run(tmp_path / "b", 1, config={"learning_rate": 3e-3}),
        "c": run(tmp_path / "c", 1, config={"memory_gb": 8}, world_size=2),
        "d": run(tmp_path / "d", 2, git={"commit": "decade"}),
        "e": run(tmp_path / "e", 3, data_fingerprint="other rows"),
    }
    assert "memory_gb" in FREE_SETTINGS
    assert names_of(runs) == [["a", "c"], ["b"], ["d"], ["e"]]
    assert names_of(runs, ["commit"]) == [["a", "c", "d"], ["b"], ["e"]]
    assert names_of(runs, ["data", "learning_rate"]) == [["a", "b", "e"], ["c"], ["d"]]


def test_another_split_seed_has_other_data(tmp_path: Path) -> None:
    other = {"config": {"split_seed": 7}, "data_fingerprint": "other rows"}
    runs = {"a": run(tmp_path / "a", 0), "b": run(tmp_path / "b", 0, **other)}
    [method] = methods_of(runs)
    assert method.seeds == "2 (split_seed 0, split_seed 7)"
    runs["c"] = run(tmp_path / "c", 1, config={"split_seed": 7})  # not the rows that this seed chose for b
    assert names_of(runs) == [["a", "b"], ["c"]]


def test_a_second_run_of_the_same_seed_is_no_further_seed(tmp_path: Path) -> None:
    names = [("old_s0", 0), ("new_s0", 0), ("old_s1", 1), ("new_s1", 1)]
    runs = {name: run(tmp_path / name, seed, id=name) for name, seed in names}
    assert names_of(runs) == [["old_s0", "old_s1"], ["new_s0", "new_s1"]]
    comparison = Comparison.of([one.folder for one in runs.values()])
    assert [method.name for method in comparison.methods] == ["old_s*", "new_s*"]
    assert comparison.notes() == [
        "new_s0 has the settings, seeds, commit and data of old_s0: nothing that was recorded tells the two apart."
    ]
    copied = run(tmp_path / "copied", 0, id="old_s0").folder
    assert Comparison.of([tmp_path / "old_s0", copied]).notes() == ["copied is a copy of old_s0."]


def test_runs_without_recorded_settings_are_told_apart(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        (folder / "run.json").write_text("{}")
    assert len(Comparison.of(folders).methods) == 2


def test_a_method_is_called_by_what_its_runs_share_if_no_other_run_does(tmp_path: Path) -> None:
    def names(*runs: tuple[str, int, float]) -> list[str]:
        found = {name: run(tmp_path / str(len(runs)) / name, seed, config={"beta": b}) for name, seed, b in runs}
        return [method.name for method in methods_of(found)]

    assert names(("s0_kto", 0, 1), ("s1_kto", 1, 1), ("dpo", 0, 2)) == ["s*_kto", "dpo"]
    assert names(("s0", 0, 1), ("s1", 1, 1), ("s2", 0, 2), ("x", 1, 2)) == ["s0 and 1 more", "s2 and 1 more"]


def test_numbered_runs_of_an_experiment_have_its_name(tmp_path: Path) -> None:
    folders = [tmp_path / "hh", tmp_path / "hh/2", tmp_path / "hh/3"]
    for seed, folder in enumerate(folders):
        run(folder, seed)
    comparison = Comparison.of(folders)
    assert (list(comparison.runs), comparison.methods[0].name) == (["hh", "hh/2", "hh/3"], "hh*")


def test_figures_are_means_with_students_interval_over_seeds(tmp_path: Path) -> None:
    a, b = [0.7, 0.74, 0.78, 0.71], [0.8]
    comparison = Comparison.of(several(tmp_path, "a", a) + several(tmp_path, "b", b, config={"learning_rate": 1}))
    low, high = stats.t.interval(0.95, 3, np.mean(a), stats.sem(a))
    assert cells(comparison)["accuracy of pairs"] == (
        f"0.250 → {np.mean(a):.3f} ({low:.3f} to {high:.3f})",
        "0.250 → 0.800, one seed",
    )
    assert cells(comparison)["seeds"] == ("4 (0, 1, 2, 3)", "one seed")


def test_an_accuracy_over_seeds_does_not_reach_above_one_and_equal_ones_have_no_interval(tmp_path: Path) -> None:
    comparison = Comparison.of(several(tmp_path, "a", [0.99, 1.0, 0.98]))
    assert cells(comparison)["accuracy of pairs"] == ("0.250 → 0.990 (0.965 to 1.000)",)
    comparison = Comparison.of(several(tmp_path, "b", [0.75, 0.75]))
    assert cells(comparison)["accuracy of pairs"] == ("0.250 → 0.750, the same for all seeds",)


def test_single_runs_are_one_seed_each_and_nothing_is_tested_over_seeds(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a", 0, 0.7), run(tmp_path / "b", 1, 0.8, config={"learning_rate": 1})
    comparison = Comparison.of([a.folder, b.folder])
    assert cells(comparison)["seeds"] == ("one seed", "one seed")
    assert cells(comparison)["accuracy of pairs"] == ("0.250 → 0.700", "0.250 → 0.800")
    assert [panel.title for panel in comparison.tables()] == [
        "Results", "Paired tests of two runs, one seed each", "Settings that differ",
    ]  # fmt: skip
    assert "nothing is known about other seeds of their methods" in comparison.page()


@pytest.mark.parametrize(("seeds", "paired"), [([0, 1, 2, 3], True), ([4, 5, 6, 7], False), ([3, 4, 5, 6], False)])
def test_methods_are_tested_over_seeds_as_scipy_does(seeds: list[int], paired: bool, tmp_path: Path) -> None:
    a, b = [0.60, 0.70, 0.65, 0.71], [0.66, 0.74, 0.73, 0.75]
    folders = several(tmp_path, "a", a) + several(tmp_path, "b", b, seeds, config={"learning_rate": 1})
    [found] = seeds_tests(Comparison.of(folders).methods)
    theirs = stats.ttest_rel(b, a) if paired else stats.ttest_ind(b, a, equal_var=False)
    interval = theirs.confidence_interval()
    assert isinstance(found, SeedsTest)
    assert (found.p, found.difference.low, found.difference.high) == pytest.approx((theirs.pvalue, *interval))
    how = "paired" if paired else "Welch"
    p = f"p = {theirs.pvalue:.3f}"
    assert str(found) == f"+0.055 ({interval[0]:+.3f} to {interval[1]:+.3f}), {p}; 4 seeds each, {how}"


def test_several_tests_over_seeds_are_adjusted_for_their_number(tmp_path: Path) -> None:
    values = {"a": [0.60, 0.70, 0.65], "b": [0.66, 0.75, 0.73], "c": [0.61, 0.71, 0.70]}
    folders = [
        folder
        for place, (name, known) in enumerate(values.items())
        for folder in several(tmp_path, name, known, config={"learning_rate": place})
    ]
    found = seeds_tests(Comparison.of(folders).methods)
    least, most = sorted(stats.ttest_rel(values[name], values["a"]).pvalue for name in ("b", "c"))
    assert sorted(test.p for test in found) == pytest.approx([2 * least, max(2 * least, most)])


def test_methods_with_one_seed_or_other_results_are_not_tested_and_the_reason_is_said(tmp_path: Path) -> None:
    a, b = several(tmp_path, "a", [0.6, 0.7]), several(tmp_path, "b", [0.8], config={"learning_rate": 1})
    c = run(tmp_path / "c", 0, config={"learning_rate": 2}).folder
    (c / "metrics.jsonl").write_text('{"step": 8, "eval/perplexity": 9.5}\n')
    rows = Comparison.of([*a, *b, c]).seeds_tests().rows
    assert [row[-1] for row in rows] == [
        "one seed of b_s0: no test; needed: two seeds or more of both",
        "results are of different kinds: accuracy of pairs and perplexity",
    ]


def test_methods_without_variance_between_seeds_are_not_tested(tmp_path: Path) -> None:
    a, b = several(tmp_path, "a", [0.1, 0.2]), several(tmp_path, "b", [0.4, 0.5], config={"learning_rate": 1})
    [row] = Comparison.of([*a, *b]).seeds_tests().rows  # both differences are .3 but for rounding
    assert row[-1] == "+0.300, without variance between seeds: no test; 2 seeds each, paired"


def test_runs_that_did_not_finish_are_not_counted_and_named(tmp_path: Path) -> None:
    folders = several(tmp_path, "a", [0.6, 0.7])
    folders.append(run(tmp_path / "a_s2", 2, 0.1, outcome="collapsed").folder)
    folders.append(run(tmp_path / "a_s3", 3, 0.1, outcome="running").folder)
    comparison = Comparison.of(folders, killed={tmp_path / "a_s3"})
    assert cells(comparison)["accuracy of pairs"][0].startswith("0.250 → 0.650 (")
    assert cells(comparison)["seeds"] == ("2 (0, 1)",)
    assert cells(comparison)["outcome"] == (
        "a_s2: stopped: the policy collapsed, not counted; a_s3: killed, not counted",
    )
    runs = {row[0]: row for row in comparison.single_runs().rows}
    assert runs["a_s3"][1:] == ("a_s*", "accuracy of pairs 0.250 → 0.100", "–", "killed")
    lone = Comparison.of([tmp_path / "a_s0", tmp_path / "a_s2", tmp_path / "a_s3"])
    assert cells(lone)["accuracy of pairs"] == ("0.250 → 0.600, one seed",)


def test_paired_tests_are_of_runs_with_the_same_seed_of_two_methods(tmp_path: Path) -> None:
    a = several(tmp_path, "a", [0.6, 0.7])
    b = several(tmp_path, "b", [0.8, 0.9], [1, 2], config={"learning_rate": 1})
    assert [row[0] for row in Comparison.of([*a, *b]).tests().rows] == ["b_s1 − a_s1", "b_s2 − a_s0"]
    assert [row[0] for row in Comparison.of(a).tests().rows] == ["a_s1 − a_s0"]


def test_different_held_out_rows_within_a_method_are_said(tmp_path: Path) -> None:
    folders = several(tmp_path, "a", [0.6, 0.7])
    for place, folder in enumerate(folders):
        row = {"prompt": place, "row": f"a:{place}", "chosen": 1.0, "rejected": 0.0, "lengths": [1, 2]}
        (folder / "scores.jsonl").write_text(json.dumps(row) + "\n")
    said = "The runs of a_s* are tested on different held-out rows: their spread is that of seeds and of rows."
    comparison = Comparison.of(folders)
    assert said in comparison.notes()
    assert said in comparison.page()


def test_settings_that_differ_are_listed_by_method(tmp_path: Path) -> None:
    a, b = several(tmp_path, "a", [0.6, 0.7]), several(tmp_path, "b", [0.6], config={"learning_rate": 1}, world_size=2)
    assert Comparison.of([*a, *b]).differences().rows == [
        ("learning_rate", "0.001", "1"), ("seed", "0, 1", "0"), ("ranks", "–", "2"),
    ]  # fmt: skip


def test_a_curve_is_the_mean_over_the_updates_that_all_finished_runs_have_over_thin_lines(tmp_path: Path) -> None:
    folders = several(tmp_path, "a", [0.6, 0.7])
    with (folders[0] / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 16, "eval/accuracy": 0.9}\n')
    folders.append(run(tmp_path / "a_s2", 2, 0.1, outcome="killed").folder)
    [chart] = [panel.chart for panel in Comparison.of(folders)._curves("") if panel.id == "accuracy"]
    assert chart
    assert [(row["x"], row["y"]) for row in chart["data"]["values"]] == [(0, 0.25), (8, pytest.approx(0.65))]
    [thin] = [layer["data"]["values"] for layer in chart["layer"] if "detail" in layer.get("encoding", {})]
    assert [row["y"] for row in thin] == [0.25, 0.6, 0.9, 0.25, 0.7, 0.25, 0.1]
    assert len({row["run"] for row in thin}) == 3


def test_an_ignored_setting_that_no_run_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--ignore comit: no run has a setting of that name; did you mean commit"):
        Comparison.of(several(tmp_path, "a", [0.6, 0.7]), ["comit"])


@needs_chromium
def test_the_page_of_methods_is_drawn_and_fits_a_phone(tmp_path: Path) -> None:
    folders = several(tmp_path, "a", [0.6, 0.7]) + several(tmp_path, "b", [0.8], config={"learning_rate": 1})
    page = tmp_path / "comparison.html"
    page.write_text(Comparison.of(folders).page())
    with open_page(page, 390) as opened:
        assert opened.page.get_by_test_id("panel-accuracy").locator(".legend bdi").all_inner_texts() == ["a_s*", "b_s0"]
        lines = opened.page.get_by_test_id("panel-accuracy").locator("svg .mark-line path")
        assert lines.count() == 5  # three runs, a mean, and the run of the other method
        assert (opened.said, opened.overflows) == ([], False)
