"""Problems of arithmetic: every one once, with its answer, as rows that prompts are read from."""

from pathlib import Path

import pytest

from lmgym.data.prompts import read_prompts
from lmgym.environments.arithmetic import arithmetic_rows, write_arithmetic
from lmgym.errors import InputError
from ppo.config import RolloutConfig


def test_every_problem_occurs_once_with_its_answer() -> None:
    rows = arithmetic_rows("+-*")
    questions = {row["prompt"][0]["content"]: row["answer"] for row in rows}
    assert len(rows) == len(questions) == 300
    assert questions["What is 3 + 9?"] == 12
    assert questions["What is 3 - 9?"] == -6
    assert questions["What is 3 * 9?"] == 27
    assert all(answer == eval(q.removeprefix("What is ").removesuffix("?")) for q, answer in questions.items())
    assert {len(row["prompt"]) for row in rows} == {1}


def test_rows_are_a_random_part_by_the_seed() -> None:
    some = arithmetic_rows("+", digits=2, rows=50, seed=3)
    assert some == arithmetic_rows("+", digits=2, rows=50, seed=3) == arithmetic_rows("+", digits=2, seed=3)[:50]
    assert some != arithmetic_rows("+", digits=2, rows=50, seed=4)
    assert max(row["answer"] for row in some) > 18


def test_examples_are_answered_problems_of_the_operations_that_are_not_asked() -> None:
    rows = arithmetic_rows("+*", examples=True)
    assert len(rows) == 198
    for row in rows:
        texts = [message["content"] for message in row["prompt"]]
        assert texts[:-1] == ["What is 2 + 3?", "2 + 3 = 5", "What is 3 * 2?", "3 * 2 = 6"]
        assert texts[-1] not in texts[:-1]


def test_the_file_is_read_as_prompts_and_an_existing_one_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "new/sums.jsonl"
    write_arithmetic(file, operations="+")
    found = read_prompts(RolloutConfig(str(file), eval_size=20), 0)
    assert (len(found.train), len(found.evaluation), found.rejections) == (80, 20, [])
    asked = [{task["prompt"] for task in side} for side in (found.train, found.evaluation)]
    assert not asked[0] & asked[1]
    text = file.read_text()
    write_arithmetic(file, operations="-")
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"operations": "+/"}, r"operations='\+/'; needed: some of \+ - \*, each once"),
        ({"operations": ""}, "operations=''; needed"),
        ({"operations": "++"}, "each once"),
        ({"digits": 4}, "digits=4; needed: 1 to 3"),
        ({"rows": 301}, r"rows=301; needed: 1 to 300; the problems of \+-\* with 1 digits"),
        ({"seed": -1}, "seed=-1; needed"),
    ],
)
def test_problems_that_there_are_not_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        arithmetic_rows(**settings)
