"""Rewards that can be checked: what math-verify counts as right, and what neither stops nor hangs a run."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lmgym.errors import InputError
from lmgym.scoring import maths
from lmgym.scoring.maths import answer_faults, correct, format_reward, judge, length_reward

TOWER, LATEX_TOWER = "9**9**9**9", "$9^{9^{9^{9}}}$"  # never evaluated to their end
MATRIX = r"$\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}$"


RIGHT_AND_WRONG: list[tuple[Any, list[str], list[str]]] = [
    (12, ["12", "3 + 9 = 12.", "Answer: 12", r"\boxed{12}", "$12$", "**12**", "12.0"], ["13", "-12", "12, or 13"]),
    (-5, ["6 - 11 = -5", "$-5$", "The answer is -5."], ["5", "11 - 6 = 5"]),
    (1234, ["1,234", "1234"], ["234"]),
    (0.5, [r"$\frac{1}{2}$", "1/2", "0.5"], ["2"]),
    (r"\frac{1}{2}", [r"\boxed{\frac{2}{4}}", "0.5"], ["1"]),
    (r"2\sqrt{3}", [r"so $\sqrt{12}$"], ["2"]),
    ("3x", ["$x + 2x$"], ["3"]),
    ("answer: 3 times 4.\n#### 12", ["12"], ["4"]),
    ("They add up.\n#### 2,125", ["2125", "#### 2,125"], ["125"]),
    ("12.", ["12"], ["13"]),
    (r"so we get \boxed{12}", ["12"], ["13"]),
    (12.0, ["12"], ["3 + 9"]),
    (MATRIX, [MATRIX], ["12", r"$\{1, 2\}$"]),
    (r"$\{1, 2\}$", [r"\boxed{\{2, 1\}}"], [MATRIX, "1"]),
    ("x < 3", ["$x < 3$"], ["$x < 4$"]),
]


def test_a_reply_is_right_if_its_last_number_or_formula_equals_the_answer() -> None:
    asked = [
        (answer, reply, wanted)
        for answer, right, wrong in RIGHT_AND_WRONG
        for replies, wanted in ((right, 1.0), ([*wrong, "", "twelve"], 0.0))
        for reply in replies
    ]
    answers, replies, _ = zip(*asked, strict=True)
    found = correct(outputs=replies, answer=answers)  # all at once: a call starts a process
    assert [one for one, reward in zip(asked, found, strict=True) if one[2] != reward] == []


def test_repeating_the_question_is_no_answer_and_several_answers_are_none() -> None:
    undone = ["3 + 9", "9 + 3", "Answer: 3 + 9", r"\boxed{3 + 9}", "12 = 3 + 9", "12 + 0", "3*4", "24/2", "12%"]
    several = ["$11$ or $12$ or $13$", r"\boxed{11} and \boxed{12}", "11, 12, 13"]
    verdicts = judge([12] * 12, [*undone, *several])
    assert verdicts == ["wrong"] * 12


def test_answers_that_cannot_be_read_are_faults_of_their_rows_and_no_reward() -> None:
    rows = [{"answer": 7}, {"answer": "twelve"}, {}, {"answer": None}, {"answer": ""}, {"answer": "#### "}]
    faults = answer_faults([*rows, {"answer": True}, {"answer": r"\boxed{+}"}, {"answer": r"$\frac{1}{2}$"}])
    assert [fault.reason if fault else None for fault in faults] == [
        None, "unreadable", *["without a value"] * 3, *["unreadable"] * 3, None,
    ]  # fmt: skip
    assert faults[1] is not None
    assert faults[1].found.startswith("'twelve' cannot be read by math-verify; needed: a number, or a formula as in")
    assert answer_faults([]) == []
    with pytest.raises(ValueError, match="the answer 'twelve' cannot be read"):
        correct(outputs=["12", "12"], answer=["12", "twelve"])


def test_a_reply_that_takes_too_long_gets_0_and_the_others_their_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "SECONDS", 0.5)
    replies = ["0.5", LATEX_TOWER, "0.25", f"Answer: {TOWER}", "1/2"]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(judge(["0.5"] * 5, replies)))  # as rewards are called
    thread.start()
    thread.join()
    assert found == [["right", "too long", "wrong", "too long", "right"]]
    faults = answer_faults([{"answer": f"{TOWER} - 1"}, {"answer": "1 " * 100_000}])
    assert [fault is None for fault in faults] == [True, False]


def test_hostile_replies_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "SECONDS", 0.5)
    replies = [
        "9" * 100_000,
        f"Answer: {TOWER}",
        LATEX_TOWER,
        "$999999999!$",
        r"$\sum_{i=1}^{10^9} i^i$",
        "$" + r"\frac{1}{" * 300 + "1" + "}" * 300 + "$",
        "(" * 5000 + "1" + ")" * 5000,
        r"\boxed{" * 2000,
        "1 " * 20_000,
        "$" * 5000,
        "\udcff\0\x1b",
        "$)($",
    ]
    verdicts = judge([12, 12] * len(replies), [text for reply in replies for text in (reply, "12")])
    assert set(verdicts[1::2]) == {"right"}
    assert set(verdicts[::2]) <= {"wrong", "too long"}


def test_a_worker_that_fails_by_itself_is_an_error_and_no_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker.py"
    monkeypatch.setattr(maths, "WORKER", worker)
    for code in ("import sys; sys.exit('no memory')", "import os; os.kill(os.getpid(), 9)", "print('right')"):
        worker.write_text(code)
        with pytest.raises(RuntimeError, match="math-verify's process ended with"):
            judge([12, 13], ["12", "13"])


def test_the_worker_ends_with_its_input_and_by_its_own_limit() -> None:
    command = [sys.executable, "-P", str(maths.WORKER), "0.3"]
    line = json.dumps(["0.5", LATEX_TOWER]) + "\n"
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGPROF, "")
    done = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_without_math_verify_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(InputError, match=r"math-verify, which is not installed: pip install 'lmgym\[maths\]'"):
        answer_faults([{"answer": 12}])


def test_the_form_of_a_reply_is_a_number_at_its_end() -> None:
    good = ["12", "3 + 9 = 12", "Answer: -1,234.5.", r"so \boxed{12}", "$12$.", "12 \n"]
    bad = ["", "12 apples", "twelve", "3 + 9 = ", "v12", "12 or so", "12)"]
    assert format_reward(outputs=[*good, *bad]) == [1.0] * len(good) + [0.0] * len(bad)


def test_the_reward_for_length_falls_from_1_to_0() -> None:
    assert length_reward(output_ids=[[], [1] * 16, [1] * 64, [1] * 100]) == [1.0, 0.75, 0.0, 0.0]
