"""The interface of a scorer. Imports no torch, so that a chat whose scorers need none starts at once."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lmgym.errors import InputError, ServerError
from lmgym.text import Conversation, reply_text

if TYPE_CHECKING:
    import numpy as np
    import torch


class ScorerFailed(ServerError):
    """A function or a server gave no scores, whatever the reply: commands end with the message."""


class FunctionFailed(ScorerFailed):
    """The user's function failed on what it was given; it may give scores of other replies."""


class NoVerdict(InputError):
    """A judge gave no verdict on a reply; it may give one on others."""


class Scorer(Protocol):
    """Scores replies: a trained model, a function, an ensemble, a random baseline."""

    def score(self, conversations: Sequence[Conversation], replies: Sequence[str]) -> "torch.Tensor | np.ndarray":
        """float32 [replies] on the CPU, higher is better. Reply i answers conversation i."""
        ...


def text_for(scorer: Scorer, text: str) -> str:
    """A reply that was sampled as a scorer gets it: a function with the blanks around it, others without."""
    return text if getattr(scorer, "reads_blanks", False) else reply_text(text)


def read_scores(scores: Any, replies: int) -> list[float]:
    """A scorer's answer as floats. Raises ValueError for a wrong number of scores, NaN or infinity."""
    numbers = [float(score) for score in (scores.tolist() if hasattr(scores, "tolist") else scores)]
    if len(numbers) != replies:
        raise ValueError(f"the scorer gave {len(numbers)} scores for {replies} replies; needed: one a reply")
    if bad := [i for i, number in enumerate(numbers) if not math.isfinite(number)]:
        where = f" for reply {bad[0]} ({len(bad)} such)" if replies > 1 else ""
        raise ValueError(f"the scorer gave {numbers[bad[0]]}{where}; needed: numbers")
    return numbers
