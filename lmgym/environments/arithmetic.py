"""Arithmetic as prompts with an `answer`: data that is made, whose answers are right, as rows or as an environment."""

import operator
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, final

import numpy as np

from lmgym.config import SEED, Range
from lmgym.console import say
from lmgym.environments.named import NamedEnvironment, Scheme, Settings, refuse_settings
from lmgym.environments.protocol import POLICY, Observation, StepResult, Task
from lmgym.errors import InputError, shown
from lmgym.messages import from_messages
from lmgym.runs.files import write_lines

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
EXAMPLES = ((2, "+", 3), (7, "-", 4), (3, "*", 2))
DIGITS = Range(1, 3, hint="all problems of such numbers are listed")

LONGEST_NUMBER = 10  # digits, of a reply
DEFAULT_OPERATIONS, SETTINGS = "+-*", ("digits", "examples", "seed")
Problem = tuple[int, str, int]


def arithmetic_rows(
    operations: str = "+-*", digits: int = 1, rows: int | None = None, examples: bool = False, seed: int = 0
) -> list[dict[str, Any]]:
    """Different problems in random order: `prompt`, chat messages ending in `What is 3 + 9?`, and `answer`, an integer.

    Numbers have at most so many digits. `rows`: None for all problems. With `examples` each question comes after an
    answered one of each operation, which is no problem itself. Raises InputError for values out of range, and for more
    rows than there are problems.
    """
    if not operations or set(operations) - set(OPERATIONS) or len(set(operations)) < len(operations):
        raise InputError(f"operations={shown(operations)}; needed: some of {' '.join(OPERATIONS)}, each once, as in +-")
    DIGITS.check("digits", digits)
    SEED.check("seed", seed)
    shown_before = [example for example in EXAMPLES if examples and example[1] in operations]
    numbers = range(10**digits)
    problems = [problem for problem in product(numbers, operations, numbers) if problem not in shown_before]
    wanted = len(problems) if rows is None else rows
    Range(1, len(problems), hint=f"the problems of {operations} with {digits} digits").check("rows", wanted)
    chosen = np.random.default_rng(seed).permutation(len(problems))[:wanted]
    return [_row([*shown_before, problems[i]]) for i in chosen]


def _row(problems: list[Problem]) -> dict[str, Any]:
    """The row of the last problem, with the answers of those before it."""
    messages = []
    for left, sign, right in problems:
        answer = OPERATIONS[sign](left, right)
        messages.append({"role": "user", "content": f"What is {left} {sign} {right}?"})
        messages.append({"role": "assistant", "content": f"{left} {sign} {right} = {answer}"})
    return {"prompt": messages[:-1], "answer": answer}


def write_arithmetic(path: str | Path, **settings: Any) -> None:
    """Writes the rows that `arithmetic_rows` makes with these settings as JSONL, unless the file exists."""
    file = Path(path)
    if file.exists():
        return
    rows = arithmetic_rows(**settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_lines(file, rows)
    say(f"{file}: {len(rows):,} problems with their answers")


@final
class Sum:
    """One question; the task is a row of `arithmetic_rows`. 1 if the last number of the reply is the answer, else 0."""

    def __init__(self) -> None:
        self.answer = 0

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        """Ask."""
        self.answer = task["answer"]
        return {POLICY: Observation(from_messages(task["prompt"]))}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Compare with the answer."""
        numbers = re.findall(r"-?\d+", actions[POLICY])
        right = bool(numbers) and len(numbers[-1]) < LONGEST_NUMBER and int(numbers[-1]) == self.answer
        return StepResult(rewards={POLICY: float(right)}, terminated=True)


def load(name: str, settings: Settings, tokenizer: Any = None) -> NamedEnvironment:
    """`--environment arithmetic:+-*` with the settings of `arithmetic_rows`, in whose order the tasks are.

    Raises InputError for other operations and settings.
    """
    words = f"arithmetic:{name}"
    refuse_settings(words, settings, SETTINGS)
    rows = arithmetic_rows(name or DEFAULT_OPERATIONS, **settings)
    return NamedEnvironment(words, Sum, rows, about=f"{len(rows):,} questions; a right answer is worth 1")


SCHEME = Scheme("arithmetic:+-*", "questions with one right answer", load, lambda: [DEFAULT_OPERATIONS], is_own=True)
