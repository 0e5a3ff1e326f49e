"""Bounds and estimates of a judge's cost: the most before the first question, about how much after some answers."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lmgym.console import say
from lmgym.generation.model_server import Usage
from lmgym.generation.request_limits import most_tokens_of
from lmgym.scoring.judge_models import JudgeModel
from lmgym.text import Conversation, messages

ENOUGH = 20  # answers for an estimate


def most_read(conversation: Conversation) -> int:
    """The most tokens that a question has."""
    return most_tokens_of({"messages": messages(conversation)})


@dataclass
class CostEstimate:
    """The questions that a command will ask, and the answers to them so far."""

    model: JudgeModel
    questions: int
    most: int
    """tokens that they have at most, together"""
    before: Usage = field(init=False)
    """what the model had been asked before"""
    answers: int = 0
    read: int = 0
    """of the answered questions, the most tokens that they have"""

    def __post_init__(self) -> None:
        self.before = replace(self.model.usage, lock=None)

    @classmethod
    def announced(cls, model: JudgeModel, left: Sequence[Conversation]) -> "CostEstimate":
        """The estimate of questions that are to be asked; what they cost at most is said."""
        made = cls(model, len(left), sum(map(most_read, left)))
        written = len(left) * model.tokens
        bound = f"at most {made.most:,} tokens read and {written:,} written"
        say(f"{len(left):,} questions to ask: {bound}{made._priced(made.most, written)}", error=True)
        return made

    def refuse_over_cost(self) -> None:
        """Raises CostReached if all questions together may cost more than is allowed: they are sent at once."""
        spending = self.model.limits.spending if self.model.limits else None
        most = spending.cost(self.most, self.questions * self.model.tokens) if spending else 0.0
        if spending and spending.spent + most > spending.most:
            raise spending.reached(most)

    def answered(self, conversation: Conversation) -> None:
        """Counts an answer; with the last of ENOUGH says about how much all of them cost."""
        self.answers, self.read = self.answers + 1, self.read + most_read(conversation)
        if self.answers == ENOUGH < self.questions:
            usage: Any = self.model.usage
            read = (usage.prompt_tokens - self.before.prompt_tokens) * self.most / self.read
            written = (usage.completion_tokens - self.before.completion_tokens) * self.questions / ENOUGH
            about = f"about {read:,.0f} tokens read and {written:,.0f} written"
            say(f"after {ENOUGH} answers: {self.questions:,} take {about}{self._priced(read, written)}", error=True)

    def _priced(self, read: float, written: float) -> str:
        limits = self.model.limits
        if limits is None or limits.spending is None:
            return ""
        return f", a cost of {limits.spending.cost(read, written):,.4f}"
