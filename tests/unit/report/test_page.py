"""report.html of run folders: its panels and figures, hostile text, sizes, crashes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import lmgym.report.page as page_module
from lmgym.report import facts
from lmgym.report.page import report_page, run_sections
from lmgym.report.panels import Panel
from lmgym.report.run_files import RunFiles
from lmgym.runs.run import Run

MEGABYTE = 1_000_000
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202eevil\x00{{ 7 * 7 }}"


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def ppo_run(folder: Path, updates: int = 4, text: str = "hello") -> Path:
    """A run folder as PPO leaves it, with known numbers."""
    record = {
        "id": "x", "name": "small", "outcome": "finished", "seconds": 60.0, "command": f"python {text}",
        "config": {"num_rollouts": 16, "name": text}, "data": {"train_tasks": 9, "rejected_by_reason": {text: 3}},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(record))
    evaluated = {"eval/reward/std": 2.0, "eval/monitor/gold_std": 4.0}
    rows: list[dict[str, Any]] = [
        {
            "step": 0,
            "eval/reward/mean": 1.0,
            "eval/reward/mean_low": 0.8,
            "eval/reward/mean_high": 1.25,
            "eval/monitor/gold": 8.0,
            **evaluated,
        }
    ]
    for u in range(1, updates + 1):
        rows.append(
            {"step": u, "reward/mean": 0.5 * u, "reward/std": 0.8, "kl/reference": u * u, "kl/sqrt_reference": float(u)}
            | {
                "eval/reward/mean": 1 + u,
                "eval/reward/mean_low": 0.8 + u,
                "eval/reward/mean_high": 1.25 + u,
                "eval/monitor/gold": 8 - 2 * u,
                **evaluated,
            }
        )
    lines(folder / "metrics.jsonl", rows)
    for update in (0, updates):
        reply = {"task": 0, "agent": "policy", "turn": 0, "prompt": f"User: {text}\nBot:", "reply": f"{text} {update}",
                 "tokens": 3, "finish": "eos", "reward": float(update), "episode_reward": float(update),
                 "scores": {text: 0.5}}  # fmt: skip
        lines(folder / f"samples/evaluation-{update:06d}.jsonl", [reply])
        lines(folder / f"samples/rollouts-{update:06d}.jsonl", [reply, reply | {"turn": 1, "advantage": -0.25}])
    lines(folder / "events.jsonl", [{"step": 2, "kind": "warning", "text": f"warning: {text}"}])
    lines(folder / "rejected.jsonl", [{"file": text, "line": 3, "reason": text, "found": text}])
    return folder


def panels(folder: Path) -> dict[str, Panel]:
    return {panel.id: panel for section in run_sections(RunFiles(folder)) for panel in section.panels}


def points(panel: Panel, series: str) -> list[tuple[float, ...]]:
    assert panel.chart
    rows = [row for row in panel.chart["data"]["values"] if row["series"] == series]
    return [tuple(row[name] for name in ("x", "y", "low", "high") if name in row) for row in rows]


def test_every_panel_is_on_the_page_under_its_test_id(tmp_path: Path) -> None:
    page = report_page(ppo_run(tmp_path))
    ids = re.findall(r'data-testid="panel-([^"]+)"', page)
    assert sorted(ids) == sorted(panels(tmp_path))
    assert len(set(ids)) == len(ids)
    expected = {
        "over_optimisation",
        "reward",
        "monitors",
        "kl",
        "replies",
        "conversations",
        "notes",
        "rejected",
        "config",
    }
    assert expected <= set(ids)


def test_curves_have_95_percent_intervals(tmp_path: Path) -> None:
    reward = panels(ppo_run(tmp_path))["reward"]
    assert points(reward, "rollouts")[1] == (2, 1.0)  # replies to one prompt depend on each other
    assert points(reward, "held out")[0] == (0, 1.0, 0.8, 1.25)


def test_the_kl_of_an_evaluation_is_that_of_the_next_replies(tmp_path: Path) -> None:
    """A line's KL is measured before its updates; its evaluation comes after them."""
    chart = panels(ppo_run(tmp_path))["over_optimisation"]
    reward = points(chart, "reward, optimised")
    # gains in standard deviations (2) of the replies before step 1, at sqrt(KL) 1, 2, 3, 4 and, for the last, 4 again
    assert [(x, y) for x, y, *_ in reward] == [(1, 0), (2, 0.5), (3, 1), (4, 1.5), (4, 2)]
    assert [(x, y) for x, y, *_ in points(chart, "gold, watched")] == [(1, 0), (2, -0.5), (3, -1), (4, -1.5), (4, -2)]


def test_the_kl_is_placed_before_the_updates_of_its_iteration(tmp_path: Path) -> None:
    run = ppo_run(tmp_path)
    assert points(panels(run)["kl"], "KL") == [(0, 1), (1, 4), (2, 9), (3, 16)]
    page = " ".join(report_page(run).split())
    assert '16</span> <span class="note">after update 3<' in page


def test_a_kl_that_few_iterations_measure_is_placed_before_their_own_updates(tmp_path: Path) -> None:
    """Without a KL penalty the reference runs in the first iteration and before evaluations only."""
    run = ppo_run(tmp_path, updates=6)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        unwanted = {1: "eval/", 2: ("kl/", "eval/"), 4: ("kl/", "eval/"), 5: ("kl/", "eval/")}.get(row["step"], "no")
        for name in [name for name in row if name.startswith(unwanted)]:
            del row[name]
    lines(run / "metrics.jsonl", rows)
    found = panels(run)
    assert points(found["kl"], "KL") == [(0, 1), (2, 9), (5, 36)]
    reward = points(found["over_optimisation"], "reward, optimised")
    assert [(x, y) for x, y, *_ in reward] == [(1, 0), (3, 1.5), (6, 3)], "at sqrt(KL) before updates 3 and 6"
    (run / "evaluation.json").write_text(json.dumps({"best_metric": "monitor/gold", "update": 3}))
    assert '9</span> <span class="note">after update 2<' in " ".join(report_page(run).split())


def test_what_one_iteration_measures_once_is_a_figure_and_its_kl_is_none(tmp_path: Path) -> None:
    run = ppo_run(tmp_path, updates=1)
    found = panels(run)
    assert "over_optimisation" not in found  # the only distance is that before all updates
    assert "kl" not in found
    assert found["once"].table is not None
    assert ("KL to the reference", "1", "before training") in found["once"].table.rows
    assert "reward" in found  # two evaluations are a line
    page = " ".join(report_page(run).split())
    assert '<small>none yet</small></span> <span class="note">measured before training only' in page


def test_replies_stand_side_by_side_and_episodes_have_their_advantages(tmp_path: Path) -> None:
    found = panels(ppo_run(tmp_path))
    [pair] = found["replies"].pairs
    before, after = pair["sides"]
    assert (pair["prompt"], before["text"], after["text"]) == ("User: hello", "hello 0", "hello 4")
    assert after["scores"] == [("reward", 4.0), ("hello", 0.5)]
    assert pair["changes"] == [{"name": "reward", "by": 4.0}]
    episode = found["conversations"].episodes[0]
    assert [dict(turn["scores"]).get("advantage") for turn in episode["turns"]] == [None, -0.25]


def test_warnings_are_marked_in_the_curves_where_they_occurred(tmp_path: Path) -> None:
    found = panels(ppo_run(tmp_path))
    assert found["reward"].chart["layer"][0]["data"]["values"] == [{"x": 2}]  # type: ignore[index]
    assert found["notes"].table.rows == [("warning", "after\N{NO-BREAK SPACE}update\N{NO-BREAK SPACE}2", "hello")]  # type: ignore[union-attr]


def test_hostile_text_does_not_leave_its_place(tmp_path: Path) -> None:
    page = report_page(ppo_run(tmp_path, text=HOSTILE))
    assert "<img src=x" not in page
    assert "<script>alert" not in page
    assert not {"\x1b", "\u202e", "\x00"} & set(page)
    assert "{{ 7 * 7 }}" in page
    for name in ("charts", "episodes"):
        [content] = re.findall(rf'<script type="application/json" id="{name}-json">(.*?)</script>', page, re.DOTALL)
        json.loads(content)


def test_a_line_of_a_megabyte_and_many_rows_stay_below_three_megabytes(tmp_path: Path) -> None:
    ppo_run(tmp_path, updates=3000, text="x" * MEGABYTE)
    huge = json.loads((tmp_path / "samples/evaluation-000000.jsonl").read_text())
    row = huge | {"prompt": "User: hello\nBot:", "scores": {"a": 0.5}, "reply": "y" * 9000}
    for update in range(1, 60):
        lines(tmp_path / f"samples/rollouts-{update:06d}.jsonl", [{**row, "task": i} for i in range(20)])
    lines(tmp_path / "samples/evaluation-000000.jsonl", [huge, *({**row, "task": i} for i in range(1, 200)), huge])
    assert len(report_page(tmp_path).encode()) < 3 * MEGABYTE


def test_text_from_the_folder_never_becomes_a_request(tmp_path: Path) -> None:
    page = report_page(ppo_run(tmp_path, text="https://example.com/x.js"))
    assert not re.search(r'(src|href)="(?!#|data:)', page.split("<script>")[0])
    assert "default-src 'none'" in page


def test_without_the_chart_package_the_page_says_so_and_keeps_its_tables(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(page_module, "vega_bundle", lambda: "")
    page = report_page(ppo_run(tmp_path))
    assert "vl-convert-python" in page
    assert 'data-testid="panel-config"' in page


def test_a_folder_with_nothing_in_it_is_still_a_page(tmp_path: Path) -> None:
    assert 'data-testid="outcome"' in report_page(tmp_path)


def test_a_run_writes_its_report_with_its_notes_and_how_it_ended(tmp_path: Path) -> None:
    run = Run.start(tmp_path / "run", {"rate": 1}, 0, "none")
    run.log(3, {"eval/accuracy": 0.5})
    run.note("warning: look here")
    run.write_report()
    assert "running, as this page was written" in (tmp_path / "run/report.html").read_text()
    run.finish("failed", 1, ZeroDivisionError("division by zero"))
    page = (tmp_path / "run/report.html").read_text()
    assert "ZeroDivisionError: division by zero" in page
    assert "look here" in page
    [event] = RunFiles(tmp_path / "run").events
    assert (event["step"], event["kind"], event["text"]) == (3, "warning", "warning: look here")


def test_a_report_that_fails_does_not_stop_the_run(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(page_module, "report_page", lambda folder: 1 / 0)
    with Run.start(tmp_path / "run", {}, 0, "none") as run:
        run.write_report()
    assert json.loads((tmp_path / "run/run.json").read_text())["outcome"] == "finished"
    line = "warning: writing report.html failed (ZeroDivisionError: division by zero); the work goes on"
    assert capsys.readouterr().err.splitlines() == [line]


def test_figures_are_those_of_the_model_that_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"outcome": "finished", "stopped_early": 30}))
    lines(
        tmp_path / "metrics.jsonl",
        [{"step": s, "eval/nll": v} for s, v in ((0, 0.7), (10, 0.5), (20, 0.6), (30, 0.65))],
    )
    (tmp_path / "evaluation.json").write_text(json.dumps({"update": 10, "best_metric": "nll"}))
    page = " ".join(report_page(tmp_path).split())
    assert "model/ is the model after update 10, the best by held-out loss: the figures are its own" in page
    assert "<small>0.700 →</small> 0.500" in page
    assert "Stopped early after update 30" in page
    assert panels(tmp_path)["loss"].chart["layer"][0]["data"]["values"] == [{"x": 10}]  # type: ignore[index]


def test_a_resumed_run_lists_its_launches(tmp_path: Path) -> None:
    ppo_run(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.1.json").write_text(json.dumps(record | {"outcome": "killed", "seconds": None, "error": None}))
    (tmp_path / "run.json").write_text(json.dumps(record | {"resumed_at": 2}))
    found = panels(tmp_path)["launches"].table
    assert found is not None
    assert [row[1:3] for row in found.rows] == [("the beginning", "killed"), ("update 2", "finished")]
    assert "Resumed 1 time, from the checkpoint after update 2." in report_page(tmp_path)


def test_the_reward_is_drawn_between_the_returns_of_other_players(tmp_path: Path) -> None:
    run = ppo_run(tmp_path / "game")
    record = json.loads((run / "run.json").read_text())
    wrong = {"hostile": None, "text": "x", "nan": float("nan")}
    record["data"]["reference_lines"] = {"random": -0.4, HOSTILE: 1.5} | wrong
    (run / "run.json").write_text(json.dumps(record))
    found = panels(run)
    rules, names = [
        layer
        for layer in found["reward"].chart["layer"]
        if layer["mark"]["type"] in ("rule", "text") and "data" in layer
    ][-2:]
    assert [value["y"] for value in rules["data"]["values"]] == [-0.4, 1.5]
    assert rules["encoding"].keys() == {"y"}
    assert names["data"]["values"][0]["name"] == "random"
    assert names["encoding"]["text"]["field"] == "name"
    assert "random" not in json.dumps(found["kl"].chart)
    assert "<script>alert" not in report_page(run)
    assert "reference" not in json.dumps([found[name].table for name in ("rows",) if name in found], default=str)


@pytest.mark.parametrize("lines_", [None, [], "x", {"random": "y"}])
def test_reference_lines_that_are_none_are_not_drawn(tmp_path: Path, lines_: Any) -> None:
    run = ppo_run(tmp_path / "game")
    record = json.loads((run / "run.json").read_text())
    plain = panels(run)["reward"].chart
    record["data"]["reference_lines"] = lines_
    (run / "run.json").write_text(json.dumps(record))
    assert panels(run)["reward"].chart == plain


def test_figures_before_training_are_no_result_of_a_run_that_was_stopped_before_its_next_evaluation(
    tmp_path: Path,
) -> None:
    record = {
        "name": "small",
        "outcome": "interrupted",
        "stage": "preferences",
        "error": "RunStopped: SIGTERM",
    }
    (tmp_path / "run.json").write_text(json.dumps(record))
    evaluated = {
        "eval/accuracy": 0.5,
        "eval/length_accuracy": 0.75,
        "eval/accuracy_low": 0.4,
        "eval/accuracy_high": 0.6,
    }
    lines(tmp_path / "metrics.jsonl", [{"step": 0, **evaluated}, {"step": 3, "train/loss": 0.25}])
    (tmp_path / "samples").mkdir()
    lines(tmp_path / "samples/000000.jsonl", [{"row": "a:1", "prompt": "User: hi", "reply": "what"}])
    cards = {card.label: (card.before, card.value, card.note) for card in facts.cards(RunFiles(tmp_path))}
    assert cards == {
        "accuracy of pairs": ("0.500", "none yet", "measured before training only"),
        "length alone": ("", "0.750", "of the held-out rows, not of the model"),
        "training loss": ("", "0.250", "after update 3"),
    }
    found = panels(tmp_path)
    assert found["replies"].title == "Replies to held-out prompts, before training"
    assert [side["name"] for side in found["replies"].pairs[0]["sides"]] == ["before"]
    page = report_page(tmp_path)
    assert "Interrupted after 3 updates, can be resumed." in page
    assert "No result yet: the trained model was not evaluated." in page
    assert "<bdi>SIGTERM</bdi>" in page


def test_each_figure_says_after_which_update_it_was_measured_and_what_its_interval_is_over(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"outcome": "finished", "stage": "sft"}))
    ends = {"eval/token_accuracy_low": 0.1, "eval/token_accuracy_high": 0.3}
    lines(tmp_path / "metrics.jsonl", [{"step": step, "eval/token_accuracy": 0.2, **ends} for step in (0, 1200)])
    [card] = facts.cards(RunFiles(tmp_path))
    assert (card.label, card.note) == ("accuracy of tokens", "after update 1,200, 95%: 0.100 to 0.300 over prompts")
    panel = panels(tmp_path)["token_accuracy"]
    assert panel.about.endswith("Bands are 95% intervals over prompts.")
    assert panel.chart
    assert "share of tokens" in json.dumps(panel.chart)
