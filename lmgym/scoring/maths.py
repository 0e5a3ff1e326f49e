"""Rewards that can be checked: a reply's answer beside the row's, by math-verify, and the form and length of a reply.

They are reward functions with trlx's signature. math-verify is an extra: `pip install 'lmgym[maths]'`.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmgym.data.rejections import NO_VALUE, UNREADABLE, RowError
from lmgym.data.rows import whole_number
from lmgym.errors import InputError, one_line, shown

WORKER = Path(__file__).with_name("maths_worker.py")
SECONDS = 2.0  # of processor time for an answer and a reply; most take a hundredth
KILLED = (-signal.SIGPROF, -signal.SIGSEGV)  # too long, or nested too deeply
LAST_NUMBER = re.compile(r"(?:^|[\s=$])(?:\\boxed\{)?-?\d[\d,]*(?:\.\d+)?\}?\$?\.?$")
LONG = 64  # tokens


def correct(outputs: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float]:
    """1 for a reply whose last number or formula equals the row's `answer`, 0 for others.

    So a reply without one, or one that takes too long to evaluate, gets 0. Raises ValueError for an answer that cannot
    be read, which is no fault of the reply: `answer_faults` finds such rows before a run.
    """
    verdicts = judge(answer, outputs)
    if "unreadable" in verdicts:
        raise ValueError(f"the answer {shown(answer[verdicts.index('unreadable')])} cannot be read by math-verify")
    return [float(verdict == "right") for verdict in verdicts]


def format_reward(outputs: Sequence[str], **columns: Any) -> list[float]:
    r"""1 for a reply that ends in a number: `12`, `3 + 9 = 12.`, `Answer: 12`, `\boxed{12}`; 0 for others."""
    return [float(bool(LAST_NUMBER.search(reply.rstrip()))) for reply in outputs]


def length_reward(output_ids: Sequence[Sequence[int]], **columns: Any) -> list[float]:
    """1 for an empty reply, falling evenly to 0 at LONG tokens, with the end token."""
    return [max(0.0, 1 - len(ids) / LONG) for ids in output_ids]


REWARDS: Mapping[str, Callable[..., list[float]]] = {
    "correct": correct,
    "format": format_reward,
    "length": length_reward,
}


def answer_faults(tasks: Sequence[Mapping[str, Any]]) -> list[RowError | None]:
    """For each row what is wrong with its `answer`, or None. Raises InputError if math-verify is not installed."""
    answers = [task.get("answer") for task in tasks]
    verdicts = judge(answers, [""] * len(answers))
    return [_fault(answer, verdict) for answer, verdict in zip(answers, verdicts, strict=True)]


def _fault(answer: Any, verdict: str) -> RowError | None:
    needed = r"needed: a number, or a formula as in \frac{1}{2}, $3x$ or \boxed{12}"
    if answer is None or answer == "":
        return RowError("answer", f"missing or empty; {needed}", NO_VALUE)
    if verdict in ("unreadable", "too long"):
        return RowError("answer", f"{shown(answer)} cannot be read by math-verify; {needed}", UNREADABLE)
    return None


def judge(answers: Sequence[Any], replies: Sequence[str]) -> list[str]:
    """A verdict a reply: right, wrong, too long (to read or compare), or unreadable, said of the answer.

    A worker process judges them one by one, and is started again after one that it did not survive. Raises InputError
    if math-verify is not installed, RuntimeError if the worker fails by itself.
    """
    if find_spec("math_verify") is None:
        raise InputError("answers are judged by math-verify, which is not installed: pip install 'lmgym[maths]'")
    lines = [json.dumps([_text(a), reply]) + "\n" for a, reply in zip(answers, replies, strict=True)]
    verdicts: list[str] = []
    while len(verdicts) < len(lines):
        done = subprocess.run(
            [sys.executable, "-P", str(WORKER), str(SECONDS)],
            input="".join(lines[len(verdicts) :]),
            text=True,
            capture_output=True,
            check=False,
            start_new_session=True,
        )
        verdicts += done.stdout.split()
        if done.returncode in KILLED:
            verdicts.append("too long")
        elif len(verdicts) < len(lines):
            raise RuntimeError(f"math-verify's process ended with {done.returncode}: {one_line(done.stderr[-300:])}")
    return verdicts


def _text(answer: Any) -> str:
    whole = whole_number(answer)
    return "" if answer is None else str(answer if whole is None else whole)
