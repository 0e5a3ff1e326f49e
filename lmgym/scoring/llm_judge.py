"""A model that grades replies by criteria, as a scorer.

A grade is the expectation over the probabilities of all grades, so that it has no ties and tells more than the grade
that is written; G-Eval (Liu et al. 2023).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from lmgym.scoring.judge_prompts import QUALITY, Criterion, Shown, grading_prompt
from lmgym.scoring.protocol import NoVerdict
from lmgym.scoring.verdicts import Verdict, Verdicts
from lmgym.text import Conversation, Reply

ONE = (Criterion("quality", QUALITY),)
SCALE = (1, 10)
MOST_CHARACTERS = 8000


@dataclass(frozen=True)
class Grade:
    """Expected grades of a reply by criterion, and the entropies of their distributions."""

    score: float
    """the weighted mean of the grades"""
    grades: dict[str, float]
    entropies: dict[str, float]
    """nats; 0 for a grade that was only written"""
    words: dict[str, str]
    """what the judge thought, and wrote with its grade; empty where it gave the grade alone"""


@final
class GradingJudge:
    """Grades each reply by each criterion; the score is the weighted mean of the grades, on the scale's own units."""

    def __init__(
        self,
        verdicts: Verdicts,
        criteria: Sequence[Criterion] = ONE,
        scale: tuple[int, int] = SCALE,
        most_characters: int = MOST_CHARACTERS,
    ) -> None:
        self.verdicts, self.criteria, self.scale, self.most_characters = verdicts, criteria, scale, most_characters
        self._cut: set[Conversation] = set()

    @property
    def cut(self) -> int:
        """Questions with a reply or a conversation that was too long to be shown whole."""
        return len(self._cut)

    def score(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> np.ndarray:
        """float32 [replies]. Raises NoVerdict for a reply to which the model gives no grade."""
        return np.array([grade.score for grade in self.grade(conversations, replies)], dtype=np.float32)

    def announce(self, conversations: Sequence[Conversation], groups: Sequence[Sequence[Reply]]) -> None:
        """Says what grades of all replies may cost at most; a group of replies to each conversation."""
        asked = [
            self._asked(c, reply, criterion).prompt
            for c, group in zip(conversations, groups, strict=True)
            for reply in group
            for criterion in self.criteria
        ]
        self.verdicts.announce(asked, self._labels)

    @property
    def _labels(self) -> list[str]:
        return [str(grade) for grade in range(self.scale[0], self.scale[1] + 1)]

    def details(self, conversations: Sequence[Conversation], replies: Sequence[Reply]) -> list[dict[str, float | str]]:
        """Of each reply the grade of each criterion, its entropy, and the judge's words beside it."""
        return [
            {
                **grade.grades,
                **{f"{name} entropy": value for name, value in grade.entropies.items()},
                **{f"{name} reasons": words for name, words in grade.words.items() if words},
            }
            for grade in self.grade(conversations, replies, counted=False)
        ]

    def grade(
        self, conversations: Sequence[Conversation], replies: Sequence[Reply], counted: bool = True
    ) -> list[Grade]:
        """The grades of each reply, one question to the model for each criterion."""
        asked = [
            [self._asked(c, reply, criterion) for criterion in self.criteria]
            for c, reply in zip(conversations, replies, strict=True)
        ]
        self._cut |= {one.prompt for row in asked for one in row if one.is_cut}
        found = iter(_asked(self.verdicts, [one for row in asked for one in row], self._labels, counted))
        return [self._grade([next(found) for _ in self.criteria]) for _ in asked]

    def _asked(self, conversation: Conversation, reply: Reply, criterion: Criterion) -> Shown:
        reasons = self.verdicts.model.reasons
        return grading_prompt(conversation, reply, criterion, self.scale, self.most_characters, reasons)

    def _grade(self, verdicts: Sequence[Verdict]) -> Grade:
        values = np.arange(self.scale[0], self.scale[1] + 1)
        grades = {c.name: float(np.dot(v.p, values)) for c, v in zip(self.criteria, verdicts, strict=True)}
        weights = [criterion.weight for criterion in self.criteria]
        entropies = {c.name: v.entropy for c, v in zip(self.criteria, verdicts, strict=True)}
        words = {c.name: v.words for c, v in zip(self.criteria, verdicts, strict=True)}
        return Grade(float(np.average(list(grades.values()), weights=weights)), grades, entropies, words)


def _asked(
    verdicts: Verdicts, shown_texts: Sequence[Shown], labels: Sequence[str], counted: bool = True
) -> list[Verdict]:
    """The verdict on each. Raises NoVerdict where the model gave none."""
    found = verdicts.ask([one.prompt for one in shown_texts], labels, counted)
    read = [one for one in found if one is not None]
    if len(read) < len(found):
        raise no_verdict(verdicts, len(found) - len(read), len(found), labels)
    return read


def no_verdict(verdicts: Verdicts, missing: int, questions: int, labels: Sequence[str]) -> NoVerdict:
    """The error of so many questions without a verdict."""
    counts, tokens = verdicts.counts, verdicts.model.tokens
    why = [f"{counts.cut:,} answers so far were cut at {tokens:,} tokens (--judge_tokens)"] * bool(counts.cut)
    why += [f"{counts.withheld:,} were withheld: {verdicts.withheld}"] * bool(counts.withheld)
    said = f" ({'; '.join(why)})" if why else ""
    return NoVerdict(
        f"the judge gave no verdict on {missing:,} of {questions:,} questions{said}; needed: a model that answers "
        f"{labels[0]} to {labels[-1]} in double brackets"
    )
