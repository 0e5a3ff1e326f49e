"""The process in which math-verify reads answers: JSON lines `[answer, reply]` in, a verdict a line out.

A script, in a process of its own: evaluating 9**9**9**9 never returns, and holds Python's lock, so that neither a
timeout of math-verify's (signals, which work in the main thread only) nor a thread could end it. A line that takes more
than the argument's seconds of processor time ends this process by SIGPROF. It imports nothing of this package.
"""

import json
import logging
import os
import re
import signal
import sys

import sympy
from math_verify import parse, verify

MARKS = ("$", r"\boxed", r"\(", r"\[")  # of a formula within a text
WORD = re.compile("[A-Za-z]{2,}")
OPERATIONS = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Function)


def read(text: str) -> list:
    """The last number or formula of a text, as a list of one; empty without any."""
    return parse(text, fallback_mode="no_fallback", parsing_timeout=None)


def read_answer(text: str) -> list:
    """The answer of a row: a number, a formula such as 2\\sqrt{3}, or a text that ends with one; GSM8K's after ####."""
    text = text.rpartition("####")[2].strip()
    is_formula = "\\" in text or not WORD.search(text)
    return read(f"${text}$" if is_formula and not any(mark in text for mark in MARKS) else text)


def judge(answer: str, reply: str) -> str:
    """`unreadable` for the answer; otherwise whether the reply's last number or formula equals it.

    If the answer is a whole number the reply has to work it out: "3 + 9" is equal to 12, and wrong.
    """
    wanted = read_answer(answer)
    if not wanted:
        return "unreadable"
    found = read(reply)
    if not found or (isinstance(wanted[0], sympy.Integer) and found[0].has(*OPERATIONS)):
        return "wrong"
    return "right" if verify(wanted, found, timeout_seconds=None) else "wrong"


def main() -> None:
    """Judges the lines of the standard input."""
    logging.disable(logging.CRITICAL)  # it warns that its timeouts are off
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        verdict = judge(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        os.write(1, f"{verdict}\n".encode())  # whole lines, whenever the process ends


if __name__ == "__main__":
    main()
