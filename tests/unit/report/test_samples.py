"""Replies to read: their titles, what changed, and several runs side by side."""

import json
from pathlib import Path
from typing import Any

from lmgym.report.run_files import RunFiles
from lmgym.report.samples import compared, replies

Rows = list[dict[str, Any]]


def run(folder: Path, samples: dict[str, Rows]) -> RunFiles:
    (folder / "samples").mkdir(parents=True)
    for name, rows in samples.items():
        (folder / f"samples/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFiles(folder)


def pair(chosen: float, rejected: float, row: str = "a.jsonl:1") -> dict[str, Any]:
    sides = [("chosen", "I can", chosen), ("rejected", "I can not", rejected)]
    return {
        "row": row,
        "prompt": "Can you?",
        "replies": [{"name": name, "text": text, "score": score} for name, text, score in sides],
    }


def reply(task: int, text: str, reward: float, prompt: str = "User: hi\nBot:") -> dict[str, Any]:
    return {"task": task, "agent": "policy", "turn": 0, "prompt": prompt, "reply": text, "reward": reward}


def test_replies_of_the_data_are_not_called_replies_after_training(tmp_path: Path) -> None:
    [panel] = replies(run(tmp_path, {"000000": [pair(0.5, 0.25)], "000008": [pair(2.0, -1.0)]}))
    assert panel.title == "Replies of held-out rows, with their scores before and after training"
    assert panel.about == "1 held-out rows, before training and after update 8."
    [found] = panel.pairs
    assert [side["scores"] for side in found["sides"]] == [
        [("score before", 0.5), ("after", 2.0)], [("score before", 0.25), ("after", -1.0)],
    ]  # fmt: skip
    assert found["changes"] == [{"name": "margin", "by": 2.75}]


def test_a_single_reply_changes_by_its_score_and_a_ranking_by_nothing(tmp_path: Path) -> None:
    rows = [
        {"row": name, "prompt": "", "replies": [{"name": str(i), "text": "x", "score": 1.0 + i} for i in range(number)]}
        for name, number in (("one", 1), ("three", 3))
    ]
    [panel] = replies(run(tmp_path, {"000000": rows, "000002": rows}))
    assert [row["changes"] for row in panel.pairs] == [[{"name": "score", "by": 0.0}], []]


def test_a_reply_whose_reward_failed_has_no_change(tmp_path: Path) -> None:
    failed = reply(0, "b", 0) | {"reward": None}
    [panel] = replies(run(tmp_path, {"evaluation-000000": [reply(0, "a", 1.0)], "evaluation-000004": [failed]}))
    assert panel.pairs[0]["changes"] == []


def test_runs_stand_side_by_side_on_the_prompts_that_all_have(tmp_path: Path) -> None:
    runs = {
        "a": run(tmp_path / "a", {"evaluation-000004": [reply(0, "one", 1.0), reply(1, "two", 0.5)]}),
        "b": run(tmp_path / "b", {"evaluation-000008": [reply(1, "TWO", 0.75), reply(2, "three", 0.5)]}),
        "c": run(tmp_path / "c", {"evaluation-000002": [reply(1, "deux", 0.25)]}),
    }
    [panel] = compared(runs)
    assert panel.about == "1 held-out rows that all runs have: a after update 4, b after update 8, c after update 2."
    [found] = panel.pairs
    assert [(side["name"], side["text"]) for side in found["sides"]] == [("a", "two"), ("b", "TWO"), ("c", "deux")]
    assert found["changes"] == [
        {"name": "reward", "by": 0.25, "of": "b − a"}, {"name": "reward", "by": -0.25, "of": "c − a"},
    ]  # fmt: skip


def test_scorers_stand_side_by_side_on_the_same_pairs(tmp_path: Path) -> None:
    runs = {
        "a": run(tmp_path / "a", {"000008": [pair(1.0, 0.5)]}),
        "b": run(tmp_path / "b", {"000008": [pair(2.0, 0.0)]}),
    }
    [panel] = compared(runs)
    [found] = panel.pairs
    assert [side["scores"] for side in found["sides"]] == [[("a", 1.0), ("b", 2.0)], [("a", 0.5), ("b", 0.0)]]
    assert found["changes"] == [{"name": "margin", "by": 1.5, "of": "b − a"}]


def test_runs_without_common_prompts_or_replies_are_not_put_side_by_side(tmp_path: Path) -> None:
    one = run(tmp_path / "a", {"evaluation-000004": [reply(0, "one", 1.0)]})
    same_number = run(tmp_path / "b", {"evaluation-000004": [reply(0, "one", 1.0, "User: bye\nBot:")]})
    assert compared({"a": one, "b": same_number}) == []
    assert compared({"a": one, "c": run(tmp_path / "c", {})}) == []


def test_scores_before_training_are_never_called_after(tmp_path: Path) -> None:
    [panel] = replies(run(tmp_path, {"000000": [pair(0.5, 0.25)]}))
    assert [side["scores"] for side in panel.pairs[0]["sides"]] == [[("score before", 0.5)], [("score before", 0.25)]]
