"""`lmgym judge` of a judge that gives no verdict on some rows: coverage, figures where it answered, comparisons."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lmgym.cli.main import main

ABSTAINS = """
def abstains(conversations, replies):
    return [float("nan") if talk.turns[-1].text.endswith(("1", "3", "5", "7", "9")) else float(len(reply))
            for talk, reply in zip(conversations, replies)]


def always(conversations, replies):
    return [-float(len(reply)) for reply in replies]
"""


@pytest.fixture(autouse=True)
def _rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 rows in two subsets: the longer reply is right in all of the first and in half of the second."""
    monkeypatch.chdir(tmp_path)
    Path("scorers.py").write_text(ABSTAINS)
    rows = [
        {
            "prompt": f"question {i}",
            "chosen": "short" if i >= 20 and i % 4 < 2 else "a longer reply",
            "rejected": "middle one",
            "subset": "easy" if i < 20 else "hard",
        }
        for i in range(40)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def judge(*words: str) -> Result:
    done = CliRunner().invoke(main, ["judge", *words, "--suite", "rows.jsonl", "--output", "out"])
    assert done.exit_code == 0, done.output
    return done


def test_accuracy_where_it_answered_stands_beside_the_strict_one() -> None:
    done = judge("a=scorers.py:abstains")
    card = json.loads(Path("out/scorecard.json").read_text())["scorers"]["a"]
    strict = {figure["name"]: figure["value"] for figure in card["figures"]}
    where = {figure["name"]: figure["value"] for figure in card["answered"]["figures"]}
    assert strict == pytest.approx({"overall": 15 / 40, "easy": 0.5, "hard": 0.25})
    assert where == pytest.approx({"overall": 0.75, "easy": 1.0, "hard": 0.5})
    assert card["answered"]["rows"] == 20
    assert card["answered"]["coverage"]["value"] == 0.5
    assert card["answered"]["coverage"]["low"] == pytest.approx(0.352, abs=1e-3), "Wilson's interval of 20 of 40"
    assert "answered 20 of 40 rows, 50.0% (35.2 to 64.8); the others count as wrong" in done.stdout
    assert "  overall                  37.5 (24.2 to 53.0); where it answered 75.0 (53.1 to 88.8)" in done.stdout
    assert "  hard                     25.0 (" in done.stdout, "sections of a file's own are printed"
    table = Path("out/scorecard.md").read_text()
    assert "| | accuracy, % (95% interval) | where it answered |" in table
    assert "| hard | 25.0 (" in table
    page = Path("out/report.html").read_text()
    assert "a, overall, unanswered rows wrong" in page
    assert "a, where it answered" in page


def test_scorers_are_compared_on_the_rows_that_both_answered_too() -> None:
    done = judge("a=scorers.py:abstains", "b=scorers.py:always")
    card = json.loads(Path("out/scorecard.json").read_text())
    strict, where = (
        {row["figure"]: row["estimate"]["value"] for row in card[name]}
        for name in ("comparisons", "comparisons_where_both_answered")
    )
    assert strict == pytest.approx({"overall": 10 / 40 - 15 / 40, "easy": -0.5, "hard": 0.25})
    assert where == pytest.approx({"overall": 5 / 20 - 15 / 20, "easy": -1.0, "hard": 0.0})
    assert "b - a, easy: -100.0 (" in done.stdout
    assert ", rows that both answered" in done.stdout
    assert "overall, where both answered" in Path("out/report.html").read_text()


def test_scorers_that_answer_everything_have_no_such_figures() -> None:
    done = judge("b=scorers.py:always")
    card = json.loads(Path("out/scorecard.json").read_text())
    assert card["scorers"]["b"]["answered"] is None
    assert card["comparisons_where_both_answered"] == []
    assert "answered" not in done.stdout
    assert "answered" not in Path("out/scorecard.md").read_text()


def test_equal_rows_of_a_file_do_not_count_as_scored_before_they_are() -> None:
    text = Path("rows.jsonl").read_text()
    Path("rows.jsonl").write_text(text + text)
    assert "have their scores" not in judge("b=scorers.py:always").stderr
    Path("rows.jsonl").write_text(text + text + text.replace("question", "another"))
    assert "80 of 120 rows have their scores" in judge("b=scorers.py:always").stderr


def test_subsets_may_be_numbers_and_may_be_missing() -> None:
    rows = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows):
        row["subset"] = [1, 2, None][i % 3]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judge("b=scorers.py:always")
    figures = json.loads(Path("out/scorecard.json").read_text())["scorers"]["b"]["figures"]
    assert [(figure["name"], figure["kind"]) for figure in figures] == [
        ("overall", "overall"),
        ("1", "section"),
        ("2", "section"),
        ("no subset", "section"),
    ]
