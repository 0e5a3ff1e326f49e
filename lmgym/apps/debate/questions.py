"""Questions: what a debate is about, as a row of data, and the checks of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lmgym.environments.engine import hash_of
from lmgym.errors import InputError, shown

Task = Mapping[str, Any]


@dataclass(frozen=True)
class Question:
    """A question with two answers, of which one may be known to be right, and the text that debaters read."""

    question: str
    options: tuple[str, str]
    correct: int | None = None
    """index of the right option"""
    text: str = ""
    """that quotes are of; the judge does not read it"""
    id: str = ""
    """of the question, or of a debate between people about it"""
    source: str = ""

    def __post_init__(self) -> None:
        where = f"question {shown(self.id or self.question)}"
        if not self.question.strip() or not all(option.strip() for option in self.options):
            raise InputError(f"{where} has no text, or an empty option; needed: a question and two answers")
        if len(self.options) != 2 or self.options[0].strip() == self.options[1].strip():
            raise InputError(f"{where} has the options {shown(list(self.options))}; needed: two different answers")
        if self.correct not in (0, 1, None):
            raise InputError(
                f"{where} has correct={shown(self.correct)}; needed: 0 or 1, the index of the right option"
            )

    @cached_property
    def key(self) -> str:
        """The same for all debates about this question of this text, whatever their ids: figures are over questions."""
        return str(hash_of(self.question, self.text))

    @property
    def task(self) -> Task:
        """The question as a row."""
        return {
            "question": self.question,
            "options": list(self.options),
            "correct": self.correct,
            "text": self.text,
            "id": self.id or self.question,
            "source": self.source,
        }


def read_question(task: Task) -> Question:
    """The question of a row. Raises InputError for a row without one, equal options, and a label out of range."""
    question, options, correct = task.get("question"), task.get("options"), task.get("correct")
    if not isinstance(question, str):
        raise InputError(f"a row has question={shown(question)}; needed: text")
    if isinstance(options, str) or not isinstance(options, Sequence) or not all(isinstance(o, str) for o in options):
        raise InputError(f"question {shown(question)} has options={shown(options)}; needed: a list of two texts")
    if len(options) != 2:
        raise InputError(f"question {shown(question)} has {len(options)} options; needed: two different answers")
    if isinstance(correct, bool) or not isinstance(correct, int | None):
        raise InputError(f"question {shown(question)} has correct={shown(correct)}; needed: 0, 1 or none")
    text, name, source = (task.get(key) or "" for key in ("text", "id", "source"))
    if not isinstance(text, str) or not isinstance(name, str | int) or not isinstance(source, str):
        found = f"text={shown(text)}, id={shown(name)}, source={shown(source)}"
        raise InputError(f"question {shown(question)} has {found}; needed: texts")
    return Question(question, (options[0], options[1]), correct, str(text), str(name) or question, str(source))


def from_gold_label(question: str, options: Sequence[str], gold_label: int, text: str = "", name: str = "") -> Question:
    """A question of QuALITY's form, whose `gold_label` counts from 1. Raises InputError for one out of range."""
    if isinstance(gold_label, bool) or not isinstance(gold_label, int) or not 1 <= gold_label <= len(options):
        raise InputError(
            f"question {shown(name or question)} has gold_label={shown(gold_label)}; needed: 1 to {len(options)}, "
            "the number of the right option"
        )
    return read_question(
        {"question": question, "options": list(options), "correct": gold_label - 1, "text": text, "id": name}
    )
