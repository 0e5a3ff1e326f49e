"""Run folders as they are found: whole, cut by a kill, broken."""

import json
from pathlib import Path

import pytest

from lmgym.report.page import report_page
from lmgym.report.run_files import RunFiles, is_game, is_number, thinned

TURN = {"messages": [{"role": "user", "content": "?"}], "reply": "yes", "ids": [1], "reward": 1.0}
GAME = {"agents": {"policy": [TURN]}, "actions": [{"policy": "yes"}], "returns": {"policy": 1.0}}


def test_a_line_that_a_kill_cut_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": 2.0}\n{"step": 2, "a"')
    run = RunFiles(tmp_path)
    assert run.metrics == [{"step": 1, "a": 2.0}]
    assert run.problems == ["metrics.jsonl: 1 lines are not as a run writes them (a kill cuts the last one)"]


def test_numbers_that_are_not_finite_are_absent(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1e999, "other": NaN, "kept": 0.5}\n')
    assert RunFiles(tmp_path).metrics == [{"step": 1, "loss": None, "other": None, "kept": 0.5}]


def test_a_record_that_is_no_json_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{" + "[" * 100_000)
    run = RunFiles(tmp_path)
    assert run.record == {}
    assert run.problems[0].startswith("run.json is unreadable")


def test_only_launches_of_the_same_run_are_listed_the_oldest_first(tmp_path: Path) -> None:
    for name, id_ in (("run.2.json", "mine"), ("run.1.json", "other"), ("run.10.json", "mine"), ("run.json", "mine")):
        (tmp_path / name).write_text(json.dumps({"id": id_, "name": name}))
    assert [record["name"] for record in RunFiles(tmp_path).launches] == ["run.2.json", "run.10.json", "run.json"]


def test_a_series_has_the_last_value_of_an_update_and_no_undefined_ones(tmp_path: Path) -> None:
    rows = [{"step": 4, "a": 1.0}, {"step": 2, "a": 0.5}, {"step": 3, "a": None}, {"step": 4, "a": 2.0}, {"a": 9.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert RunFiles(tmp_path).series("a") == [(2, 0.5), (4, 2.0)]


def test_samples_are_read_by_kind_and_update(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    for name in ("evaluation-000010.jsonl", "evaluation-000002.jsonl", "000003.jsonl", "rollouts-000001.jsonl"):
        (folder / name).write_text(json.dumps({"name": name}) + "\n")
    run = RunFiles(tmp_path)
    assert run.sample_updates("evaluation") == [2, 10]
    assert run.samples("evaluation", 10) == [{"name": "evaluation-000010.jsonl"}]
    assert (run.sample_updates(""), run.samples("", 3)) == ([3], [{"name": "000003.jsonl"}])


def test_thinned_points_keep_the_first_and_the_last() -> None:
    kept = thinned(list(range(1000)), 50)
    assert (kept[0], kept[-1], len(kept)) == (0, 999, 50)
    assert thinned([1, 2, 3], 50) == [1, 2, 3]


def test_numbers_are_finite_and_no_bools() -> None:
    values = [1, 0.5, True, float("nan"), float("inf"), None, "1"]
    assert [is_number(v) for v in values] == [True, True, False, False, False, False, False]


@pytest.mark.parametrize(
    "change",
    [
        {"actions": [["yes"]]}, {"actions": "yes"}, {"actions": [{"policy": ["yes"]}]}, {"agents": [TURN]},
        {"agents": {"policy": TURN}}, {"agents": {"policy": ["yes"]}}, {"returns": [1.0]}, {"returns": {"policy": "x"}},
        *({"agents": {"policy": [TURN | turn]}} for turn in (
            {"reply": ["yes"]}, {"messages": ["?"]}, {"messages": {"role": "user"}}, {"ids": 1}, {"reward": "1"},
            {"reward": [1, "x"]},
        )),
    ],
)  # fmt: skip
def test_a_game_of_other_types_is_counted_and_left_out_of_the_report(change: dict, tmp_path: Path) -> None:
    assert is_game(GAME)
    path = tmp_path / "episodes/rollouts-00000001.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in (GAME, GAME | change)))
    run = RunFiles(tmp_path)
    assert list(run.games("rollouts", 1, 9)) == [GAME]
    assert "1 lines are not as a run writes them" in run.problems[0]
    assert "are not as a run writes them" in report_page(tmp_path)


@pytest.mark.parametrize("name", ["config", "data", "former", "git", "versions"])
def test_a_part_of_the_record_that_is_no_object_is_a_problem(name: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"name": "x", name: ["x"]}))
    run = RunFiles(tmp_path)
    assert run.record == {"name": "x"}
    assert run.problems == [f"run.json: {name} cannot be read; needed: objects"]
    assert report_page(tmp_path)


def test_counts_that_are_no_object_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"data": {"rejected_by_reason": 3, "train_rows": 4}}))
    assert RunFiles(tmp_path).record == {}
