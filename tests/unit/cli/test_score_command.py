"""`lmgym score`: every form of row, the file that is written, the figures, and rows that cannot be scored."""

import csv
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from judge_server import comparing_judge

from lmgym.cli.main import main
from lmgym.cli.score import ScoredRow, _together, comparing_figures, figures, score_file
from lmgym.data.records import Record
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),))
WORLD = "world:0"  # a scorer that needs no folder


def score(*words: object) -> Result:
    return CliRunner().invoke(main, ["score", *(str(word) for word in words)])


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FORMS = [
    {"prompt": "hello", "reply": "hi there"},
    {"prompt": "hello", "response": "hi there"},
    {"prompt": "hello", "completion": "hi there"},
    {"prompt": [{"role": "user", "content": "hello"}], "completion": [{"role": "assistant", "content": "hi there"}]},
    {"input_text": "User: hello\nBot:", "output_text": "hi there"},
    {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi there"}]},
    {"text": "User: hello\nBot: hi there"},
]


def test_every_form_of_a_row_has_the_score_that_the_scorer_gives(scorer_folders: dict[str, Path]) -> None:
    folder = scorer_folders["llama"]
    [expected] = HFScorer.load(folder).score([HELLO], ["hi there"]).tolist()
    done = score(folder, write(Path("rows.jsonl"), *FORMS))
    assert done.exit_code == 0, done.output
    written = lines(Path("outputs/scores/rows.jsonl"))
    assert [{k: v for k, v in row.items() if k != "score"} for row in written] == FORMS
    assert [row["score"] for row in written] == pytest.approx([expected] * len(FORMS), abs=1e-5)
    assert f"scores: 7; mean {expected:.4g}" in done.stdout
    assert "7 rows with their scores are in outputs/scores/rows.jsonl" in done.stdout
    assert "accuracy" not in done.stdout
    assert "rejected" not in done.stdout


def test_pairs_have_two_scores_and_an_accuracy(scorer_folders: dict[str, Path]) -> None:
    scorer = HFScorer.load(scorer_folders["llama"])
    worse, better = sorted(["tea", "coffee"], key=lambda reply: scorer.score([HELLO], [reply]).item())
    pair = {"prompt": "hello", "chosen": better, "rejected": worse}
    turned = {"prompt": "hello", "chosen": worse, "rejected": better}
    done = score(scorer_folders["llama"], write(Path("pairs.jsonl"), pair, turned, pair, pair), "--output", "x/y.jsonl")
    assert done.exit_code == 0, done.output
    written = lines(Path("x/y.jsonl"))
    margins = [row["score_chosen"] - row["score_rejected"] for row in written]
    assert [margin > 0 for margin in margins] == [True, False, True, True]
    assert "scores: 8;" in done.stdout
    assert (
        f"pairs: 4; accuracy 0.7500 (–), mean margin {sum(margins) / 4:.4g}, ties 0.00%; the shorter reply is"
        in done.stdout
    )


def test_the_figures_are_those_worked_out_by_hand_and_a_tie_is_wrong() -> None:
    pair = ScoredRow(Record("f", 1, {}), HELLO, ("a", "b"))
    alone = ScoredRow(Record("f", 2, {}), HELLO, ("a",))
    pair_b = ScoredRow(Record("f", 3, {}), HELLO, ("bbb", "a"))
    assert figures([(pair, [3.0, 1.0]), (pair_b, [1.0, 1.0]), (alone, [4.0])]) == [
        "scores: 5; mean 2, standard deviation 1.265, 5% to 95%: 1 to 3.8, minimum 1, maximum 4",
        "pairs: 2; accuracy 0.5000 (–), mean margin 1, ties 50.00%; the shorter reply is the chosen one in 25.00%",
        "–: one prompt is too few for a 95% interval",
    ]


def test_verdicts_in_both_orders_are_worked_out_by_hand() -> None:
    """.9 of P on a right pair and .7 on a wrong one: bins whose accuracies are 1 and 0."""
    rows = [ScoredRow(Record("f", n, {}), Conversation((Turn("user", str(n)),)), ("a", "b")) for n in range(3)]
    verdicts = [(0.95, 0.85), (0.6, 0.0)]
    found = [{"comparison": {"shown_first": a, "shown_second": b}} for a, b in verdicts]
    [line, *_] = comparing_figures(rows, [*found, {}])
    assert line.startswith("both orders: 0.500 (")
    assert "of the pairs are right in both; the better reply changes with the order in 0.500 (" in line
    assert line.endswith("calibration error of P, the mean of both: 0.400")  # (|.9 - 1| + |.7 - 0|) / 2
    assert comparing_figures(rows, [{}] * 3) == []


def test_a_judge_that_compares_has_its_verdicts_in_each_row(tmp_path: Path, monkeypatch, capsys) -> None:
    judge = comparing_judge(lambda a, b: 0.9 if len(a) > len(b) else 0.4, tmp_path)
    monkeypatch.setattr("lmgym.cli.score.load_scorer", lambda *given, **named: judge)
    pairs = [{"prompt": f"p{n}", "chosen": "longer", "rejected": "no"} for n in range(3)]
    score_file("compare:mine", str(write(Path("rows.jsonl"), *pairs)), "out.jsonl")
    assert [row["comparison"] for row in lines(Path("out.jsonl"))] == [{"shown_first": 0.9, "shown_second": 0.6}] * 3
    assert "both orders: 1.000" in capsys.readouterr().out
    assert judge.order_bias.comparisons == 3, "not counted again"


def test_progress_is_said_at_the_start_and_now_and_then(monkeypatch) -> None:
    monkeypatch.setattr("lmgym.report.status_line.PLAIN_SECONDS", 0.0)
    rows = [{"prompt": "hello", "reply": f"{'word ' * 3000}{i}"} for i in range(4)]  # each a part of its own
    done = score(WORLD, write(Path("rows.jsonl"), *rows))
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    assert said[0] == "4 rows to score, with 4 replies"
    assert [line.partition(",")[0] for line in said if line.startswith("scoring")] != []
    assert any("2/4 rows" in line for line in said), said
    assert any("left" in line for line in said), said


def test_parts_hold_every_row_once_whatever_their_lengths() -> None:
    def row(length: int) -> ScoredRow:
        return ScoredRow(Record("f", length, {}), HELLO, ("x" * length,))

    rows = [row(length) for length in (1, 100_000, 5, *[30] * 3000, 40_000)]
    parts = list(_together(rows))
    assert [one for part in parts for one in part] == rows
    assert max(map(len, parts)) <= 1024
    assert all(parts)


def test_csv_and_parquet_are_read_too() -> None:
    rows = [{"prompt": "hello", "reply": word} for word in ("hi", "bye")]
    pq.write_table(pa.Table.from_pylist(rows), "rows.parquet")
    with open("rows.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "reply"])
        writer.writeheader()
        writer.writerows(rows)
    for name in ("rows.parquet", "rows.csv"):
        assert score(WORLD, name).exit_code == 0
        assert [row["reply"] for row in lines(Path("outputs/scores/rows.jsonl"))] == ["hi", "bye"]


def test_rows_that_cannot_be_scored_are_counted_with_their_reasons() -> None:
    good = {"prompt": "hello", "reply": "hi"}
    bad = [{"prompt": "hello", "reply": " "}, {"prompt": "hello"}, "not json", {"a": 1}]
    done = score(WORLD, write(Path("rows.jsonl"), good, *bad, good))
    assert done.exit_code == 0, done.output
    assert len(lines(Path("outputs/scores/rows.jsonl"))) == 2
    [line] = [line for line in done.stdout.splitlines() if "rejected" in line]
    assert line.startswith("4 of 6 rows rejected: ")
    assert "without a reply (field completion)" in line
    assert "1 not JSON" in line
    assert "; the first: rows.jsonl, line 2, reply: " in line


def test_a_row_that_the_scorers_template_refuses_costs_only_itself(scorer_folders, tmp_path: Path) -> None:
    folder = tmp_path / "strict"
    shutil.copytree(scorer_folders["llama"], folder)
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    path = folder / "chat_template.jinja"
    path.write_text(template + path.read_text())
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    rows = [{"messages": turns}, {"messages": [{"role": "system", "content": "A bot."}, *turns]}, {"messages": turns}]
    done = score(folder, write(Path("rows.jsonl"), *rows))
    assert done.exit_code == 0, done.output
    assert "1 of 3 rows rejected: 1 refused by the chat template" in done.stdout
    assert "rows.jsonl, line 2, (row): " in done.stdout
    assert [row["messages"] for row in lines(Path("outputs/scores/rows.jsonl"))] == [turns, turns]


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([{"a": 1}], [], "rows.jsonl holds no replies: found the columns a; needed: columns chosen and rejected"),
        ([], [], "rows.jsonl is empty: found 0 rows; needed: at least 2 replies"),
        ([FORMS[0]], ["--output", "rows.jsonl"], "--output rows.jsonl is the file to score; needed: another one"),
        ([FORMS[0]], ["--output", "."], "--output . is a folder; needed: a file"),
        ([FORMS[0]], ["--output", "rows.jsonl/x"], "--output rows.jsonl/x: a folder in its path is a file"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(rows: list, words: list[str], message: str) -> None:
    write(Path("rows.jsonl"), *rows)
    before = Path("rows.jsonl").read_text()
    done = score(WORLD, "rows.jsonl", *words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert Path("rows.jsonl").read_text() == before


def test_a_missing_file_and_a_missing_scorer_are_named() -> None:
    assert "none.jsonl does not exist" in score(WORLD, "none.jsonl").stderr
    write(Path("rows.jsonl"), FORMS[0])
    assert "scorer ./none does not exist" in score("./none", "rows.jsonl").stderr


def test_a_question_is_not_scored_without_the_passage_that_it_is_about() -> None:
    passage = "Ann has four nuts and gets one more of them."
    rows = write(Path("rows.jsonl"), *[{"prompt": "How many?", "reply": str(n), "body": passage} for n in range(4)])
    done = score("longer.py:f", rows)
    assert done.exit_code == 2
    assert "nothing reads the column body" in done.output
    assert "--context_column body" in done.output
    Path("longer.py").write_text("def f(outputs, prompts, **_):\n    return [len(str(p)) for p in prompts]\n")
    for flag in ("--context_column", "--ignore_columns"):
        done = score("longer.py:f", rows, flag, "body")
        assert done.exit_code == 0, done.output
        written = lines(Path("outputs/scores/rows.jsonl"))
        assert {row["body"] for row in written} == {passage}
        assert (min(row["score"] for row in written) > len(passage)) == (flag == "--context_column")


def test_a_function_gets_the_columns_of_the_rows_and_one_that_they_have_not_is_refused(tmp_path: Path) -> None:
    write(
        tmp_path / "rows.jsonl",
        {"prompt": "2+2?", "completion": "4", "answer": "4"},
        {"prompt": "3+3?", "completion": "7", "answer": "6", "topic": "sums"},
    )
    (tmp_path / "f.py").write_text(
        "async def right(completions, prompts, answer, topic):\n"
        "    return [float(a in c and p.endswith('?')) - 2 * (t is None)\n"
        "            for c, p, a, t in zip(completions, prompts, answer, topic)]\n"
        "def other(completions, gold):\n    return [0.0] * len(completions)\n"
    )
    done = score("f.py:right", "rows.jsonl", "--output", "scored.jsonl")
    assert done.exit_code == 0, done.output
    assert [line["score"] for line in lines(tmp_path / "scored.jsonl")] == [-1.0, 0.0]
    done = score("f.py:other", "rows.jsonl")
    assert done.exit_code == 2
    assert "f.py:other requires gold" in done.output
    assert "and the columns answer, topic" in done.output
