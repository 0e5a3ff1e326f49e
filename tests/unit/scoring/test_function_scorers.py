"""Functions of users' files as scorers."""

from pathlib import Path

import pytest

from lmgym.errors import InputError
from lmgym.scoring.named_scorers import load_scorer
from lmgym.scoring.protocol import ScorerFailed
from lmgym.text import Conversation, Turn

ASKED = Conversation((Turn("user", "hi"),))
FILE = """
import numpy as np
def of_both(conversations, replies):
    return [len(c.turns) + len(r) for c, r in zip(conversations, replies)]
def array(conversations, replies):
    return np.array([len(r) for r in replies])
def trlx(samples, prompts, outputs, tokenizer=None, **columns):
    assert not columns, columns
    return [float(s == p + " " + o) for s, p, o in zip(samples, prompts, outputs)]
def outputs_alone(outputs):
    return [float(len(o)) for o in outputs]
def with_answer(outputs, answer, **columns):
    return [1.0] * len(outputs)
async def later(completions):
    return [float(len(c)) for c in completions]
def other_names(a, b):
    return [1.0]
def fails(outputs, **columns):
    return [1 / len(o) for o in outputs]
def words(conversations, replies):
    return ["good"] * len(replies)
def few(conversations, replies):
    return [1.0]
def none(conversations, replies):
    return None
def infinite(conversations, replies):
    return [float("inf")] * len(replies)
NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "rewards.py").write_text(FILE)
    return str(tmp_path / "rewards.py")


@pytest.mark.parametrize(
    ("name", "scores"),
    [
        ("of_both", [3, 4]),
        ("array", [2, 3]),
        ("trlx", [1, 1]),
        ("outputs_alone", [2, 3]),
        ("later", [1, 1]),  # a message each
    ],
)
def test_functions_score_in_their_forms(file: str, name: str, scores: list[float]) -> None:
    assert load_scorer(f"{file}:{name}").score([ASKED] * 2, ["ab", "abc"]).tolist() == scores


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "has the functions of_both, array, trlx, .*; needed: .*rewards.py:FUNCTION, with one of them"),
        ("of_boht", "has no function 'of_boht'; did you mean of_both"),
        ("NUMBER", "has no function 'NUMBER'"),
        ("with_answer", "requires answer, which nothing gives it here; there are samples, .* and no columns"),
        (
            "other_names",
            r"rewards.py:other_names\(a, b\) has no parameter that says its form; needed: .*of TRL; .*verl",
        ),
    ],
)
def test_a_function_that_cannot_score_is_refused_before_it_is_called(file: str, name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_scorer(f"{file}:{name}" if name else file)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"ZeroDivisionError: division by zero \(.*rewards.py, line 19\)"),
        ("words", "could not convert string to float"),
        ("few", "gave 1 scores for 2 replies"),
        ("none", "NoneType"),
        ("infinite", "gave inf for reply 0"),
    ],
)
def test_what_a_function_raises_and_what_is_no_score_is_one_line(file: str, name: str, words: str) -> None:
    with pytest.raises(ScorerFailed, match=f"rewards.py:{name}.*{words}"):
        load_scorer(f"{file}:{name}").score([ASKED] * 2, ["a", ""])


def test_a_file_with_one_function_or_one_that_has_a_form_needs_no_name(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from json import loads\ndef f(outputs):\n    return [2.0] * len(outputs)\n")
    assert load_scorer(str(tmp_path / "one.py")).score([ASKED], ["a"]).tolist() == [2]
    (tmp_path / "two.py").write_text(
        "def answer_of(text):\n    return 3.0\ndef f(queries):\n    return [answer_of(0)]\n"
    )
    assert load_scorer(str(tmp_path / "two.py")).score([ASKED], ["a"]).tolist() == [3]
    (tmp_path / "none.py").write_text("NUMBER = 1\n")
    with pytest.raises(InputError, match=r"none.py has no function; needed: .*none.py:FUNCTION"):
        load_scorer(str(tmp_path / "none.py"))
