"""Labels as rows: votes that every stage reads, figures of raters by hand, and nothing that leads a rater."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from label_pages import LabelServer, serve_label_page, two_sided, write_rows
from patience import PATIENCE

from lmgym.apps.serve.label_export import _chance_of, in_words
from lmgym.data.mixing import read_sets
from lmgym.data.pairs import Pair, validate


def exported(server: LabelServer) -> list[dict[str, Any]]:
    import urllib.request

    with urllib.request.urlopen(f"{server.url}/label/labels.jsonl", timeout=PATIENCE) as answer:
        return [json.loads(line) for line in answer.read().splitlines()]


def read_back(path: Path) -> list[Pair]:
    pairs, _ = validate(*read_sets(str(path), "train").values(), soft=True)
    return pairs


def test_votes_become_soft_targets_and_who_cannot_say_has_none(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(5))
    with serve_label_page(rows, tmp_path / "labels") as server:
        server.judge("Ann", "good", "good", "tie", "cannot say", "cannot say")
        server.judge("Bo", "good", "bad", "tie", "bad", "cannot say")
        server.judge("Cy", "good", "good", "bad", "cannot say")
        found = exported(server)
        figures = server.do("overview")
    names = ("rater_1", "rater_2", "rater_3", "ties", "cannot_say")
    assert [[row[name] for name in names] for row in found] == [
        ["response_a", "response_a", "response_a", 0, 0],
        ["response_a", "response_b", "response_a", 0, 0],
        ["tie", "tie", "response_b", 2, 0],
        ["cannot say", "response_b", "cannot say", 0, 2],
    ], "nobody could judge the fifth pair"
    pairs = read_back(tmp_path / "labels/labels.jsonl")
    assert [(pair.chosen, round(pair.preference, 4)) for pair in pairs] == [
        ("good 0", 1.0),
        ("good 1", 0.6667),
        ("bad 2", 0.6667),  # half a vote of each tie
        ("bad 3", 1.0),
    ]
    assert pairs == read_back(tmp_path / "labels"), "the folder itself is a data set"
    assert (figures["rows"], figures["votes"], figures["ties"], figures["cannot_say"]) == (4, 10, 2, 4)
    assert figures["pairs_without_a_vote_that_somebody_could_not_judge"] == 1
    assert figures["agreement"]["rows"] == 9  # three pairs of raters on three rows
    assert math.isclose(figures["agreement"]["value"], (3 + 1 + 1) / 9)
    assert json.loads((tmp_path / "labels/record/summary.json").read_text()) == figures


def test_conversations_tools_and_thoughts_come_back_as_they_were(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "Go on."},
    ]
    sides = [[{"role": "assistant", "content": text, "reasoning_content": f"hm {text}"}] for text in ("one", "two")]
    row = {"prompt": chat, "tools": [tool], "chosen": sides[0], "rejected": sides[1]}
    source = write_rows(tmp_path / "rows.jsonl", [row])
    with serve_label_page(source, tmp_path / "labels") as server:
        view = server.do("state", rater="Ann")["pair"]
        server.judge("Ann", "first")
    assert [turn["role"] for turn in view["turns"]] == ["system", "user", "assistant", "user"]
    assert sorted((reply["text"], reply["thoughts"]) for reply in view["replies"]) == [
        ("one", "hm one"),
        ("two", "hm two"),
    ]
    assert '"name": "f"' in view["tools"]
    [pair], [original] = read_back(tmp_path / "labels/labels.jsonl"), read_back(source)
    assert pair.conversation == original.conversation
    assert {pair.chosen, pair.rejected} == {original.chosen, original.rejected}


def test_sides_are_random_over_raters_and_rows_and_the_same_after_a_reload(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(200))
    first: dict[str, list[bool]] = {}
    with serve_label_page(rows, tmp_path / "labels") as server:
        for rater in ("Ann", "Bo"):
            seen = []
            state = server.do("state", rater=rater)
            for _ in range(200):
                assert server.do("state", rater=rater) == state, "a reload"
                text = json.dumps(state["pair"])
                assert "response_" not in text
                assert "rows.jsonl" not in text
                seen.append(state["pair"]["replies"][0]["text"].startswith("good"))
                state = server.judge(rater, "first")
            first[rater] = seen
        figures = server.do("overview")["raters"]
    assert 70 < sum(first["Ann"]) < 130
    assert 70 < sum(a == b for a, b in zip(first["Ann"], first["Bo"], strict=True)) < 130
    assert [rater["leans"] for rater in figures] == ["first", "first"]


def test_a_rater_is_told_of_agreement_on_judged_rows_alone(tmp_path: Path) -> None:
    with serve_label_page(write_rows(tmp_path / "rows.jsonl", two_sided(4)), tmp_path / "labels") as server:
        server.judge("Ann", "good", "good", "tie", "good")
        server.judge("Cy", "bad", "bad", "tie")
        assert server.do("state", rater="Bo")["agreement"]["rows"] == 0
        same = server.judge("Bo", "good")["agreement"]
        assert (same["value"], same["low"], same["rows"]) == (0.5, None, 2), "Ann and Cy are not compared here"
        assert server.judge("Bo", "good")["agreement"]["value"] == 0.5
        state = server.judge("Bo", "cannot say")
        assert state["agreement"]["rows"] == 4, "who cannot say neither agrees nor disagrees"
        server.do("undo", rater="Bo", pair=state["last"])
        assert server.judge("Bo", "tie")["agreement"]["value"] == 4 / 6


def test_who_always_says_first_is_named_and_who_looks_at_the_texts_is_not(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(40))
    with serve_label_page(rows, tmp_path / "labels") as server:
        server.judge("Lazy", *["first"] * 40)
        server.judge("Keen", *["good"] * 40)
        server.judge("New", *["second"] * 4)
        figures = server.do("overview")
    lazy, keen, new = figures["raters"]
    assert (lazy["leans"], lazy["first"], lazy["share_first"]["value"]) == ("first", 40, 1.0)
    assert keen["leans"] == ""
    assert 0 < keen["first"] < 40
    assert new["leans"] == "", "four in a row are no proof"
    lines = list(in_words(figures))
    assert "LEANS TO THE FIRST ONE" in lines[2]
    assert lines[2].startswith("rater_1, Lazy: 40 verdicts, 100% (91% to 100%) of 40 decisions")
    assert sum("LEANS" in line for line in lines) == 1


def test_the_chance_of_heads_is_that_of_the_binomial_distribution() -> None:
    assert _chance_of(0, 0) == 1
    assert math.isclose(_chance_of(6, 6), 2 * 0.5**6)
    assert math.isclose(_chance_of(1, 5), 2 * (1 + 5) / 32)


@pytest.mark.slow
def test_reward_models_and_policies_train_on_labels_that_were_made_here(scorer_folders, small_models, tmp_path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", two_sided(12))
    with serve_label_page(rows, tmp_path / "labels") as server:
        for rater in ("A", "B", "../x"):
            server.judge(rater, *["good"] * 8, "tie", "bad", "cannot say", "first")
    for stage, model, rejected in (("reward", scorer_folders["llama"], 0), ("dpo", small_models["llama"], 1)):
        command = [sys.executable, "-m", "lmgym", "train", stage, tmp_path / "labels", "--dry_run", "--eval_size", "1"]
        command += ["--model", model, "--output", tmp_path / stage]
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        assert f"{rejected} of 11 rows rejected" in run.stdout, "a tie of votes has no better reply"
